"""MindSpore's APIs and the PyTorch APIs that compute the same, written from the two public documentations.

``SAME_NAME``: MindSpore prefix > PyTorch prefix, then the names both sides share. ``RENAMED``: one API per line,
``MindSpore API > PyTorch API``, and after a colon the order of MindSpore's arguments where it or their names differ;
``axis=dim`` says that MindSpore's ``axis`` is PyTorch's ``dim``. Names are those of a dump.

Prefixes of mint are a rule of their own (api_names.py): mint copies PyTorch's names and signatures.
"""

from __future__ import annotations

SAME_NAME = """
Functional > Torch: abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv angle arange arccos arccosh arcsin
Functional > Torch: arcsinh arctan arctan2 arctanh argwhere asin asinh atan atan2 atanh atleast_1d atleast_2d
Functional > Torch: atleast_3d baddbmm bernoulli bincount bitwise_and bitwise_left_shift bitwise_or
Functional > Torch: bitwise_right_shift bitwise_xor block_diag broadcast_to ceil cholesky cholesky_inverse
Functional > Torch: cholesky_solve clamp clip column_stack combinations conj cos cosh cov diag diag_embed diagflat
Functional > Torch: diagonal diagonal_scatter digamma dsplit dstack einsum erf erfc erfinv exp expm1 eye flip fliplr
Functional > Torch: flipud float_power floor floor_divide fmax fmod full full_like gcd ge geqrf ger gt heaviside histc
Functional > Torch: hsplit hstack hypot i0 igamma igammac imag index_select inner inverse is_complex is_floating_point
Functional > Torch: isclose isfinite isinf isnan isneginf isposinf isreal kron lcm ldexp le lerp lgamma linspace log
Functional > Torch: log10 log1p log2 logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or
Functional > Torch: logical_xor logit logspace lt lu_solve masked_select matmul matrix_exp maximum minimum msort mul
Functional > Torch: nan_to_num nanmean nanmedian nanquantile ne neg negative nextafter nonzero numel ones_like orgqr
Functional > Torch: ormqr outer permute polar polygamma positive pow quantile rand rand_like randint randint_like
Functional > Torch: randn randn_like randperm range ravel real reciprocal remainder reshape roll rot90 round rsqrt
Functional > Torch: searchsorted select_scatter sgn sigmoid sign signbit sin sinc sinh slogdet sqrt square sub sum svd
Functional > Torch: t take tan tanh tile topk trace trapz tril tril_indices triu triu_indices true_divide trunc unbind
Functional > Torch: unique_consecutive unsqueeze vander view_as_real vsplit vstack where zeros_like
Functional > Functional: adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
Functional > Functional: adaptive_max_pool2d adaptive_max_pool3d affine_grid alpha_dropout conv3d cosine_similarity
Functional > Functional: ctc_loss dropout dropout1d dropout2d dropout3d elu embedding feature_alpha_dropout fold
Functional > Functional: fractional_max_pool2d fractional_max_pool3d gelu grid_sample group_norm gumbel_softmax
Functional > Functional: hardshrink hardsigmoid hardswish hardtanh huber_loss instance_norm interpolate layer_norm
Functional > Functional: local_response_norm logsigmoid max_unpool1d max_unpool2d max_unpool3d mish pixel_shuffle
Functional > Functional: pixel_unshuffle prelu relu rrelu silu softplus softshrink softsign tanhshrink threshold
Functional > Functional: upsample
Tensor > Tensor: __abs__ __add__ __and__ __bool__ __contains__ __eq__ __floordiv__ __ge__ __getitem__ __gt__ __iadd__
Tensor > Tensor: __ifloordiv__ __imod__ __imul__ __invert__ __isub__ __le__ __len__ __lt__ __matmul__
Tensor > Tensor: __mod__ __mul__ __ne__ __neg__ __or__ __pow__ __radd__ __rmatmul__ __rmod__ __rmul__ __rpow__
Tensor > Tensor: __rsub__ __rtruediv__ __setitem__ __sub__ __truediv__ __xor__ abs absolute acos acosh add add_ addbmm
Tensor > Tensor: addcdiv addcmul addmm addmv addr all amax amin any arccos arccosh arcsin arcsinh arctan arctan2
Tensor > Tensor: arctanh argmax argmin argsort argwhere asin asinh atan atan2 atanh baddbmm bernoulli bincount
Tensor > Tensor: bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bmm bool broadcast_to byte
Tensor > Tensor: ceil cholesky cholesky_inverse cholesky_solve chunk clamp clip conj contiguous copy_ copysign cos
Tensor > Tensor: cosh count_nonzero cov cross cummax cummin cumprod cumsum deg2rad diag diag_embed diagflat diagonal
Tensor > Tensor: diff digamma dist div div_ divide dot double dsplit eq erf erfc erfinv exp exp_ expand expand_as
Tensor > Tensor: expm1 fill_ fill_diagonal_ flatten flip fliplr flipud float float_power floor floor_divide fmax fmin
Tensor > Tensor: fmod frac gather gcd ge geqrf ger greater greater_equal gt half hardshrink heaviside histc hsplit
Tensor > Tensor: hypot i0 igamma igammac imag index_add index_fill index_put index_select inner int inverse is_complex
Tensor > Tensor: is_contiguous is_floating_point is_signed isclose isfinite isinf isnan isneginf isposinf isreal item
Tensor > Tensor: kthvalue lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 log_ logaddexp logaddexp2
Tensor > Tensor: logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp long lt lu_solve
Tensor > Tensor: masked_fill masked_fill_ masked_scatter masked_select matmul matrix_power max maximum mean median min
Tensor > Tensor: minimum mm moveaxis movedim msort mul mul_ multinomial multiply mvlgamma nan_to_num nansum narrow ne
Tensor > Tensor: neg negative new_ones new_zeros nextafter nonzero norm not_equal numel orgqr ormqr outer permute
Tensor > Tensor: positive pow prod quantile rad2deg ravel real reciprocal remainder renorm repeat repeat_interleave
Tensor > Tensor: reshape reshape_as resize_ roll rot90 round rsqrt scatter scatter_ scatter_add scatter_add_ select
Tensor > Tensor: select_scatter sgn short sigmoid sign signbit sin sinc sinh size slogdet softmax sort split sqrt
Tensor > Tensor: square squeeze std stride sub sub_ subtract sum svd swapdims t take tan tanh tile to tolist topk
Tensor > Tensor: trace tril triu true_divide trunc type unbind unfold unique_consecutive unsqueeze var view view_as
Tensor > Tensor: vsplit where xlogy zero_
Distributed > Distributed: barrier batch_isend_irecv irecv isend recv send
"""

RENAMED = """
Functional.addr > Torch.addr: x=input vec1 vec2 beta alpha
Functional.all > Torch.all: input axis=dim keep_dims=keepdim
Functional.amax > Torch.amax: input axis=dim keepdims=keepdim
Functional.amin > Torch.amin: input axis=dim keepdims=keepdim
Functional.aminmax > Torch.aminmax: input axis=dim keepdims=keepdim
Functional.any > Torch.any: input axis=dim keep_dims=keepdim
Functional.argmax > Torch.argmax: input dim keepdim
Functional.argmin > Torch.argmin: input axis=dim keepdims=keepdim
Functional.argsort > Torch.argsort: input axis=dim descending
Functional.bmm > Torch.bmm: input_x=input mat2
Functional.bucketize > Torch.bucketize: input boundaries right
Functional.cat > Torch.cat: tensors axis=dim
Functional.concat > Torch.cat: tensors axis=dim
Functional.cdist > Torch.cdist: x1 x2 p
Functional.chunk > Torch.chunk: input chunks axis=dim
Functional.clip_by_value > Torch.clamp: x=input clip_value_min=min clip_value_max=max
Functional.copysign > Torch.copysign: x=input other
Functional.count_nonzero > Torch.count_nonzero: x=input axis=dim keep_dims dtype
Functional.cross > Torch.cross: input other dim
Functional.cummax > Torch.cummax: input axis=dim
Functional.cummin > Torch.cummin: input axis=dim
Functional.cumprod > Torch.cumprod: input dim dtype
Functional.cumsum > Torch.cumsum: x=input axis=dim dtype
Functional.deg2rad > Torch.deg2rad: x=input
Functional.rad2deg > Torch.rad2deg: x=input
Functional.diff > Torch.diff: x=input n axis=dim prepend append
Functional.dist > Torch.dist: input other p
Functional.div > Torch.div: input other rounding_mode
Functional.divide > Torch.div: input other rounding_mode
Functional.dot > Torch.dot: input other=tensor
Functional.equal > Torch.eq: input other
Functional.eq > Torch.eq: input other
Functional.expand_dims > Torch.unsqueeze: input_x=input axis=dim
Functional.flatten > Torch.flatten: input order start_dim end_dim
Functional.gather > Torch.index_select: input_params=input input_indices=index axis=dim batch_dims
Functional.gather_elements > Torch.gather: input dim index
Functional.greater > Torch.gt: input other
Functional.greater_equal > Torch.ge: input other
Functional.less > Torch.lt: input other
Functional.less_equal > Torch.le: input other
Functional.index_add > Torch.index_add: x=input indices=index y=source axis=dim
Functional.index_fill > Torch.index_fill: x=input axis=dim index value
Functional.kthvalue > Torch.kthvalue: input k dim keepdim
Functional.logsumexp > Torch.logsumexp: input axis=dim keep_dims=keepdim
Functional.masked_fill > Torch.masked_fill: input_x=input mask value
Functional.max > Torch.max: input axis=dim keepdims=keepdim
Functional.min > Torch.min: input axis=dim keepdims=keepdim
Functional.mean > Torch.mean: x=input axis=dim keep_dims=keepdim
Functional.median > Torch.median: input axis=dim keepdims=keepdim
Functional.meshgrid > Torch.meshgrid: *inputs=tensors
Functional.mm > Torch.mm: input mat2
Functional.moveaxis > Torch.movedim: x=input source destination
Functional.movedim > Torch.movedim: x=input source destination
Functional.multinomial > Torch.multinomial: input num_samples replacement seed
Functional.multiply > Torch.mul: input other
Functional.mv > Torch.mv: mat=input vec
Functional.nansum > Torch.nansum: input axis=dim keepdims=keepdim dtype
Functional.narrow > Torch.narrow: input axis=dim start length
Functional.norm > Torch.norm: A=input ord=p dim keepdim dtype
Functional.not_equal > Torch.ne: input other
Functional.ones > Torch.ones: *shape=size
Functional.zeros > Torch.zeros: *size
Functional.prod > Torch.prod: input axis=dim keep_dims=keepdim dtype
Functional.reduce_sum > Torch.sum: x=input axis=dim keep_dims=keepdim
Functional.reduce_mean > Torch.mean: x=input axis=dim keep_dims=keepdim
Functional.reduce_max > Torch.amax: x=input axis=dim keep_dims=keepdim
Functional.reduce_min > Torch.amin: x=input axis=dim keep_dims=keepdim
Functional.renorm > Torch.renorm: input p axis=dim maxnorm
Functional.repeat_elements > Torch.repeat_interleave: x=input rep=repeats axis=dim
Functional.repeat_interleave > Torch.repeat_interleave: input repeats axis=dim
Functional.scatter > Torch.scatter: input axis=dim index src
Functional.tensor_scatter_elements > Torch.scatter: input_x=input indices=index updates=src axis=dim
Functional.select > Torch.where: condition input other
Functional.sort > Torch.sort: input_x=input axis=dim descending
Functional.split > Torch.split: tensor split_size_or_sections axis=dim
Functional.squeeze > Torch.squeeze: input axis=dim
Functional.stack > Torch.stack: tensors axis=dim
Functional.std > Torch.std: input axis=dim ddof=correction keepdims=keepdim
Functional.std_mean > Torch.std_mean: input axis=dim ddof=correction keepdims=keepdim
Functional.subtract > Torch.sub: input other alpha
Functional.swapaxes > Torch.transpose: input axis0=dim0 axis1=dim1
Functional.swapdims > Torch.transpose: input dim0 dim1
Functional.tensor_dot > Torch.tensordot: x1=a x2=b axes=dims
Functional.tensor_split > Torch.tensor_split: input indices_or_sections axis=dim
Functional.transpose > Torch.permute: input input_perm=dims
Functional.unstack > Torch.unbind: input_x=input axis=dim
Functional.var > Torch.var: input axis=dim ddof=correction keepdims=keepdim
Functional.var_mean > Torch.var_mean: input axis=dim ddof=correction keepdims=keepdim
Functional.xlogy > Torch.xlogy: input other
Functional.scalar_to_tensor > Torch.tensor
Functional.cast > Tensor.to: input=self dtype
Functional.tensor_add > Torch.add
Functional.tensor_sub > Torch.sub
Functional.tensor_mul > Torch.mul
Functional.tensor_div > Torch.div
Functional.tensor_pow > Torch.pow
Functional.tensor_lt > Torch.lt
Functional.tensor_le > Torch.le
Functional.tensor_gt > Torch.gt
Functional.tensor_ge > Torch.ge
Functional.dense > Functional.linear: input weight bias
Functional.bidense > Functional.bilinear: input1 input2 weight bias
Functional.avg_pool1d > Functional.avg_pool1d: input_x=input kernel_size stride padding ceil_mode count_include_pad
Functional.avg_pool2d > Functional.avg_pool2d: input_x=input kernel_size stride padding ceil_mode count_include_pad \
divisor_override
Functional.avg_pool3d > Functional.avg_pool3d: input_x=input kernel_size stride padding ceil_mode count_include_pad \
divisor_override
Functional.batch_norm > Functional.batch_norm: input_x=input running_mean running_var weight bias training momentum eps
Functional.binary_cross_entropy > Functional.binary_cross_entropy: logits=input labels=target weight reduction
Functional.binary_cross_entropy_with_logits > Functional.binary_cross_entropy_with_logits: logits=input label=target \
weight pos_weight reduction
Functional.celu > Functional.celu: x=input alpha
Functional.conv1d > Functional.conv1d: input weight bias stride pad_mode padding dilation groups
Functional.conv2d > Functional.conv2d: input weight bias stride pad_mode padding dilation groups
Functional.cosine_embedding_loss > Functional.cosine_embedding_loss: input1 input2 target margin reduction
Functional.cross_entropy > Functional.cross_entropy: input target weight ignore_index reduction label_smoothing
Functional.gaussian_nll_loss > Functional.gaussian_nll_loss: x=input target var full eps reduction
Functional.glu > Functional.glu: x=input axis=dim
Functional.hinge_embedding_loss > Functional.hinge_embedding_loss: inputs=input targets=target margin reduction
Functional.kl_div > Functional.kl_div: logits=input labels=target reduction
Functional.l1_loss > Functional.l1_loss: input target reduction
Functional.leaky_relu > Functional.leaky_relu: input alpha=negative_slope
Functional.log_softmax > Functional.log_softmax: logits=input axis=dim
Functional.lp_pool1d > Functional.lp_pool1d: x=input norm_type kernel_size stride ceil_mode
Functional.lp_pool2d > Functional.lp_pool2d: x=input norm_type kernel_size stride ceil_mode
Functional.margin_ranking_loss > Functional.margin_ranking_loss: input1 input2 target margin reduction
Functional.max_pool2d > Functional.max_pool2d: x=input kernel_size stride padding dilation return_indices ceil_mode
Functional.max_pool3d > Functional.max_pool3d: x=input kernel_size stride padding dilation ceil_mode return_indices
Functional.mse_loss > Functional.mse_loss: input target reduction
Functional.multi_margin_loss > Functional.multi_margin_loss: input target p margin weight reduction
Functional.multilabel_margin_loss > Functional.multilabel_margin_loss: input target reduction
Functional.multilabel_soft_margin_loss > Functional.multilabel_soft_margin_loss: input target weight reduction
Functional.nll_loss > Functional.nll_loss: inputs=input target weight ignore_index reduction label_smoothing
Functional.one_hot > Functional.one_hot: indices=tensor depth=num_classes
Functional.pad > Functional.pad: input_x=input padding=pad mode value
Functional.relu6 > Functional.relu6: x=input
Functional.selu > Functional.selu: input_x=input
Functional.smooth_l1_loss > Functional.smooth_l1_loss: input target beta reduction
Functional.soft_margin_loss > Functional.soft_margin_loss: input target reduction
Functional.softmax > Functional.softmax: input axis=dim dtype
Functional.softmin > Functional.softmin: x=input axis=dim dtype
Functional.triplet_margin_loss > Functional.triplet_margin_loss: anchor positive negative margin p eps swap reduction
Functional.unfold > Functional.unfold: input kernel_size dilation padding stride
Functional.rms_norm > NPU.npu_rms_norm: x=self gamma epsilon
Functional.rotary_position_embedding > NPU.npu_rotary_mul: x=self cos=r1 sin=r2
Functional.swiglu > NPU.npu_swiglu: input=self dim
Functional.flash_attention_score > NPU.npu_fusion_attention: query key value head_num real_shift=pse drop_mask \
padding_mask attn_mask=atten_mask prefix actual_seq_qlen actual_seq_kvlen keep_prob scalar_value=scale \
pre_tokens=pre_tockens next_tokens=next_tockens inner_precise input_layout sparse_mode
Tensor.all > Tensor.all: self=input axis=dim keep_dims=keepdim
Tensor.any > Tensor.any: self=input axis=dim keep_dims=keepdim
Tensor.amax > Tensor.amax: self=input axis=dim keepdims=keepdim
Tensor.amin > Tensor.amin: self=input axis=dim keepdims=keepdim
Tensor.argmin > Tensor.argmin: self=input axis=dim keepdims=keepdim
Tensor.argsort > Tensor.argsort: self=input axis=dim descending
Tensor.asnumpy > Tensor.numpy
Tensor.astype > Tensor.to: self dtype copy
Tensor.copy > Tensor.clone
Tensor.chunk > Tensor.chunk: self=input chunks axis=dim
Tensor.cumsum > Tensor.cumsum: self=input axis=dim dtype
Tensor.equal > Tensor.eq
Tensor.expand_dims > Tensor.unsqueeze: self=input axis=dim
Tensor.flatten > Tensor.flatten: self=input order start_dim end_dim
Tensor.gather_elements > Tensor.gather: self=input dim index
Tensor.cauchy > Tensor.cauchy_
Tensor.fill > Tensor.fill_
Tensor.fill_diagonal > Tensor.fill_diagonal_
Tensor.index_add > Tensor.index_add: self=input dim index source alpha
Tensor.index_fill > Tensor.index_fill: self=input axis=dim index value
Tensor.index_select > Tensor.index_select: self=input axis=dim index
Tensor.logsumexp > Tensor.logsumexp: self=input axis=dim keepdims=keepdim
Tensor.max > Tensor.max: self=input axis=dim keepdims=keepdim
Tensor.min > Tensor.min: self=input axis=dim keepdims=keepdim
Tensor.mean > Tensor.mean: self=input axis=dim keep_dims=keepdim
Tensor.median > Tensor.median: self=input axis=dim keepdims=keepdim
Tensor.narrow > Tensor.narrow: self=input axis=dim start length
Tensor.norm > Tensor.norm: self=input ord=p dim keepdim dtype
Tensor.permute > Tensor.permute: self *axis=dims
Tensor.prod > Tensor.prod: self=input axis=dim keep_dims=keepdim dtype
Tensor.random_categorical > Tensor.multinomial
Tensor.repeat_interleave > Tensor.repeat_interleave: self=input repeats dim
Tensor.reshape > Tensor.reshape: self *shape
Tensor.scatter > Tensor.scatter: self=input axis=dim index src
Tensor.softmax > Tensor.softmax: self=input axis=dim dtype
Tensor.sort > Tensor.sort: self=input axis=dim descending
Tensor.split > Tensor.split: self=tensor split_size_or_sections axis=dim
Tensor.squeeze > Tensor.squeeze: self=input axis=dim
Tensor.std > Tensor.std: self=input axis=dim ddof=correction keepdims=keepdim
Tensor.sum > Tensor.sum: self=input axis=dim dtype keepdims=keepdim initial
Tensor.swapaxes > Tensor.transpose: self=input axis0=dim0 axis1=dim1
Tensor.to > Tensor.to: self dtype
Tensor.transpose > Tensor.transpose
Tensor.var > Tensor.var: self=input axis=dim ddof=correction keepdims=keepdim
Tensor.view > Tensor.view: self *shape
Tensor.repeat > Tensor.repeat: self *repeats
Tensor.expand > Tensor.expand: self *size
Distributed.all_reduce > Distributed.all_reduce: tensor op group async_op
Distributed.all_gather_into_tensor > Distributed.all_gather_into_tensor: tensor=input_tensor group async_op
Distributed.reduce_scatter_tensor > Distributed.reduce_scatter_tensor: tensor=input op group async_op
Distributed.broadcast > Distributed.broadcast: tensor src group
Distributed.reduce > Distributed.reduce: tensor dst op group
Distributed.scatter_tensor > Distributed.scatter
Distributed.gather_into_tensor > Distributed.gather
Distributed.all_to_all_with_output_shape > Distributed.all_to_all
Distributed.all_to_all_single_with_output_shape > Distributed.all_to_all_single: output_shape tensor=input \
output_split_sizes input_split_sizes group async_op
Primitive.Abs > Torch.abs
Primitive.Add > Torch.add
Primitive.BatchMatMul > Torch.matmul
Primitive.Cast > Tensor.to
Primitive.Concat > Torch.cat
Primitive.Div > Torch.div
Primitive.Equal > Torch.eq
Primitive.Erf > Torch.erf
Primitive.Exp > Torch.exp
Primitive.ExpandDims > Torch.unsqueeze
Primitive.GeLU > Functional.gelu
Primitive.LayerNorm > Functional.layer_norm: input_x=input gamma=weight beta=bias
Primitive.Log > Torch.log
Primitive.LogSoftmax > Functional.log_softmax
Primitive.MatMul > Torch.matmul
Primitive.Maximum > Torch.maximum
Primitive.Minimum > Torch.minimum
Primitive.Mul > Torch.mul
Primitive.Neg > Torch.neg
Primitive.Pow > Torch.pow
Primitive.RealDiv > Torch.div
Primitive.ReduceMean > Torch.mean
Primitive.ReduceSum > Torch.sum
Primitive.ReLU > Functional.relu
Primitive.Reshape > Torch.reshape: input shape
Primitive.RmsNorm > NPU.npu_rms_norm: x=self gamma
Primitive.Rsqrt > Torch.rsqrt
Primitive.Sigmoid > Torch.sigmoid
Primitive.SiLU > Functional.silu
Primitive.Softmax > Functional.softmax
Primitive.Split > Torch.split
Primitive.Sqrt > Torch.sqrt
Primitive.Square > Torch.square
Primitive.Squeeze > Torch.squeeze
Primitive.Stack > Torch.stack
Primitive.Sub > Torch.sub
Primitive.Tanh > Torch.tanh
Primitive.Tile > Torch.tile
Primitive.Transpose > Torch.permute: input input_perm=dims
Primitive.Tril > Torch.tril
Primitive.Triu > Torch.triu
"""
