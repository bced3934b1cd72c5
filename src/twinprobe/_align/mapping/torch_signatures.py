"""The positional order of PyTorch's arguments, from its documentation: one API per line.

A star marks the argument that takes the rest. Only APIs are listed whose MindSpore counterpart needs it.
"""

from __future__ import annotations

TORCH_SIGNATURES = """
Torch.addbmm input batch1 batch2 beta alpha
Torch.addcdiv input tensor1 tensor2 value
Torch.addcmul input tensor1 tensor2 value
Torch.addmm input mat1 mat2 beta alpha
Torch.addmv input mat vec beta alpha
Torch.addr input vec1 vec2 beta alpha
Torch.all input dim keepdim
Torch.amax input dim keepdim
Torch.amin input dim keepdim
Torch.aminmax input dim keepdim
Torch.any input dim keepdim
Torch.argmax input dim keepdim
Torch.argmin input dim keepdim
Torch.argsort input dim descending stable
Torch.baddbmm input batch1 batch2 beta alpha
Torch.bmm input mat2
Torch.bucketize input boundaries out_int32 right
Torch.cat tensors dim
Torch.cdist x1 x2 p compute_mode
Torch.chunk input chunks dim
Torch.clamp input min max
Torch.copysign input other
Torch.count_nonzero input dim
Torch.cross input other dim
Torch.cummax input dim
Torch.cummin input dim
Torch.cumprod input dim dtype
Torch.cumsum input dim dtype
Torch.deg2rad input
Torch.diff input n dim prepend append
Torch.dist input other p
Torch.div input other rounding_mode
Torch.dot input tensor
Torch.einsum equation *operands
Torch.eq input other
Torch.ge input other
Torch.gt input other
Torch.flatten input start_dim end_dim
Torch.flip input dims
Torch.full size fill_value
Torch.full_like input fill_value
Torch.gather input dim index sparse_grad
Torch.index_add input dim index source alpha
Torch.index_fill input dim index value
Torch.index_select input dim index
Torch.kthvalue input k dim keepdim
Torch.le input other
Torch.lt input other
Torch.logsumexp input dim keepdim
Torch.masked_fill input mask value
Torch.masked_select input mask
Torch.matmul input other
Torch.max input dim keepdim
Torch.maximum input other
Torch.mean input dim keepdim dtype
Torch.median input dim keepdim
Torch.meshgrid *tensors
Torch.min input dim keepdim
Torch.minimum input other
Torch.mm input mat2
Torch.mode input dim keepdim
Torch.movedim input source destination
Torch.mul input other
Torch.multinomial input num_samples replacement
Torch.mv input vec
Torch.nansum input dim keepdim dtype
Torch.narrow input dim start length
Torch.ne input other
Torch.norm input p dim keepdim out dtype
Torch.ones *size
Torch.outer input vec2
Torch.permute input dims
Torch.pow input exponent
Torch.prod input dim keepdim dtype
Torch.rad2deg input
Torch.renorm input p dim maxnorm
Torch.repeat_interleave input repeats dim output_size
Torch.reshape input shape
Torch.roll input shifts dims
Torch.scatter input dim index src
Torch.scatter_add input dim index src
Torch.softmax input dim dtype
Torch.sort input dim descending stable
Torch.split tensor split_size_or_sections dim
Torch.squeeze input dim
Torch.stack tensors dim
Torch.std input dim correction keepdim
Torch.std_mean input dim correction keepdim
Torch.sub input other alpha
Torch.sum input dim keepdim dtype
Torch.tensor_split input indices_or_sections dim
Torch.tensordot a b dims
Torch.tile input dims
Torch.topk input k dim largest sorted
Torch.transpose input dim0 dim1
Torch.trapz y x dim
Torch.tril input diagonal
Torch.triu input diagonal
Torch.unbind input dim
Torch.unsqueeze input dim
Torch.var input dim correction keepdim
Torch.var_mean input dim correction keepdim
Torch.where condition input other
Torch.xlogy input other
Torch.zeros *size
Functional.adaptive_avg_pool1d input output_size
Functional.adaptive_avg_pool2d input output_size
Functional.adaptive_avg_pool3d input output_size
Functional.avg_pool1d input kernel_size stride padding ceil_mode count_include_pad
Functional.avg_pool2d input kernel_size stride padding ceil_mode count_include_pad divisor_override
Functional.avg_pool3d input kernel_size stride padding ceil_mode count_include_pad divisor_override
Functional.batch_norm input running_mean running_var weight bias training momentum eps
Functional.bilinear input1 input2 weight bias
Functional.binary_cross_entropy input target weight size_average reduce reduction
Functional.binary_cross_entropy_with_logits input target weight size_average reduce reduction pos_weight
Functional.celu input alpha inplace
Functional.conv1d input weight bias stride padding dilation groups
Functional.conv2d input weight bias stride padding dilation groups
Functional.conv3d input weight bias stride padding dilation groups
Functional.cosine_embedding_loss input1 input2 target margin size_average reduce reduction
Functional.cosine_similarity x1 x2 dim eps
Functional.cross_entropy input target weight size_average ignore_index reduce reduction label_smoothing
Functional.ctc_loss log_probs targets input_lengths target_lengths blank reduction zero_infinity
Functional.dropout input p training inplace
Functional.elu input alpha inplace
Functional.embedding input weight padding_idx max_norm norm_type scale_grad_by_freq sparse
Functional.fold input output_size kernel_size dilation padding stride
Functional.gaussian_nll_loss input target var full eps reduction
Functional.gelu input approximate
Functional.glu input dim
Functional.group_norm input num_groups weight bias eps
Functional.gumbel_softmax logits tau hard eps dim
Functional.hardshrink input lambd
Functional.hardsigmoid input inplace
Functional.hardswish input inplace
Functional.hardtanh input min_val max_val inplace
Functional.hinge_embedding_loss input target margin size_average reduce reduction
Functional.huber_loss input target reduction delta weight
Functional.interpolate input size scale_factor mode align_corners recompute_scale_factor antialias
Functional.kl_div input target size_average reduce reduction log_target
Functional.l1_loss input target size_average reduce reduction weight
Functional.layer_norm input normalized_shape weight bias eps
Functional.leaky_relu input negative_slope inplace
Functional.linear input weight bias
Functional.log_softmax input dim _stacklevel dtype
Functional.logsigmoid input
Functional.lp_pool1d input norm_type kernel_size stride ceil_mode
Functional.lp_pool2d input norm_type kernel_size stride ceil_mode
Functional.margin_ranking_loss input1 input2 target margin size_average reduce reduction
Functional.max_pool2d input kernel_size stride padding dilation ceil_mode return_indices
Functional.max_pool3d input kernel_size stride padding dilation ceil_mode return_indices
Functional.mish input inplace
Functional.mse_loss input target size_average reduce reduction weight
Functional.multi_margin_loss input target p margin weight size_average reduce reduction
Functional.multilabel_margin_loss input target size_average reduce reduction
Functional.multilabel_soft_margin_loss input target weight size_average reduce reduction
Functional.nll_loss input target weight size_average ignore_index reduce reduction
Functional.one_hot tensor num_classes
Functional.pad input pad mode value
Functional.prelu input weight
Functional.relu input inplace
Functional.relu6 input inplace
Functional.rms_norm input normalized_shape weight eps
Functional.scaled_dot_product_attention query key value attn_mask dropout_p is_causal scale enable_gqa
Functional.selu input inplace
Functional.silu input inplace
Functional.smooth_l1_loss input target size_average reduce reduction beta
Functional.soft_margin_loss input target size_average reduce reduction
Functional.softmax input dim _stacklevel dtype
Functional.softmin input dim _stacklevel dtype
Functional.softplus input beta threshold
Functional.softshrink input lambd
Functional.softsign input
Functional.threshold input threshold value inplace
Functional.triplet_margin_loss anchor positive negative margin p eps swap size_average reduce reduction
Functional.unfold input kernel_size dilation padding stride
Tensor.expand self *size
Tensor.permute self *dims
Tensor.repeat self *repeats
Tensor.reshape self *shape
Tensor.to self dtype
Tensor.view self *shape
NPU.npu_fusion_attention query key value head_num input_layout pse padding_mask atten_mask scale keep_prob pre_tockens \
next_tockens inner_precise prefix actual_seq_qlen actual_seq_kvlen sparse_mode
NPU.npu_rms_norm self gamma epsilon
NPU.npu_rotary_mul self r1 r2
NPU.npu_swiglu self dim
Distributed.all_reduce tensor op group async_op
Distributed.all_gather_into_tensor output_tensor input_tensor group async_op
Distributed.reduce_scatter_tensor output input op group async_op
Distributed.broadcast tensor src group async_op
Distributed.reduce tensor dst op group async_op
Distributed.send tensor dst group tag
Distributed.recv tensor src group tag
Distributed.isend tensor dst group tag
Distributed.irecv tensor src group tag
Distributed.all_to_all_single output input output_split_sizes input_split_sizes group async_op
"""
