// Headings and labels in Chinese, where the browser asks for it. What the runs and the judge say stays as it is.
if (navigator.language.toLowerCase().startsWith("zh")) {
  const words = {
    "All ranks and steps": "全部 rank 与 step", Reports: "报告", Pages: "页面", "Graphs (open with twinprobe view)": "图（用 twinprobe view 打开）",
    Tables: "表格", "Mapping files": "映射文件", Folders: "文件夹", "Other files": "其他文件", "Datasets (parquet by step and rank)": "数据集（按 step 与 rank 的 parquet）",
    target: "待调试侧", golden: "标杆侧", noise: "噪声", rank: "rank", show: "筛选", "only what differs": "仅显示有差异的",
    "part of a name, e.g. layers.3 gradient": "名称的一部分，例如 layers.3 gradient", series: "序列", curves: "曲线",
    Alignment: "对齐", Find: "查找", "API calls": "API 调用", "only unmatched or doubtful": "仅显示未配对或存疑的", "Open all": "全部展开",
    "Close all": "全部收起", "one to one": "一对一", "one to several": "一对多", doubtful: "存疑", unmatched: "未配对", "what the lines mean": "线条含义",
    "target run": "待调试侧", "golden run": "标杆侧", "Point at a module to see what it was paired with, and why.": "指向模块，查看它与谁配对以及原因。",
    "How it was found": "查找过程", "The two programs": "两个程序", Notes: "说明", "Step by step": "逐 step 曲线", "first differing step": "首个有差异的 step",
    "watch every step": "监视每个 step", "record the step": "记录该 step", "keep the suspects' tensors": "保存可疑张量", "run the call again": "重新执行该调用",
    "put golden's values in": "代入标杆侧的值", "all curves": "全部曲线", "whole table": "完整表格", program: "程序", model: "模型", steps: "step 数", processes: "进程数",
    seeds: "随机种子", loss: "损失", "gradient norm": "梯度范数", "learning rate": "学习率", "equal in all steps": "所有 step 均相等", "no values": "没有数值",
    "loss: relative difference, and noise (dotted)": "损失：相对差异与噪声（虚线）", "gradient norm: relative difference, and noise (dotted)": "梯度范数：相对差异与噪声（虚线）",
    "learning rate: relative difference, and noise (dotted)": "学习率：相对差异与噪声（虚线）", "no difference": "没有差异", interrupted: "已中断", "not finished": "未完成",
    dtype: "数据类型", shape: "形状", max: "最大值", min: "最小值", mean: "均值", norm: "范数",
    "Token by token": "逐词元", "Error of each token, in multiples of the noise": "各词元的误差（噪声的倍数）", "Tokens that differ": "有差异的词元", "All tokens": "全部词元",
    "A row for each module in the order of the calls, a column for each token.": "每行一个模块（按调用顺序），每列一个词元。",
    "within noise": "噪声以内", "up to 10 times": "10 倍以内", "up to 100 times": "100 倍以内", "up to 10,000 times": "10,000 倍以内", more: "更大",
    sequence: "序列", token: "词元", id: "编号", differs: "有差异", first_module: "首个模块", error: "误差", result_error: "结果误差",
    target_position: "待调试侧位置", golden_position: "标杆侧位置", target_call: "待调试侧调用", target_row: "待调试侧行", target_column: "待调试侧列",
    golden_call: "标杆侧调用", golden_row: "标杆侧行", golden_column: "标杆侧列",
    "Log-probabilities of the same tokens": "相同词元的对数概率", "Difference over steps": "差异随 step 的变化", "The worst sequence, token by token": "差异最大的序列，逐词元",
    "Its difference": "其差异", Steps: "step", "Sequences, the worst first": "序列（差异大者在前）", "mean size of the difference": "差异的平均大小", largest: "最大",
    "share of tokens beyond the limit": "超出限值的词元比例", "size of the difference": "差异大小", "nothing to draw": "没有可绘制的内容",
    "error of each token in each module": "各模块中各词元的误差", sequences: "序列数", tokens: "词元数", aligned: "已对齐", "not aligned": "未对齐", phase: "阶段", what: "内容", cause: "原因", why: "说明", cosine: "余弦", "max abs": "最大绝对差",
  };
  // Counts and titles: whole texts first, then what stands in badges and beside links, piece by piece.
  const sentences = [
    [/^limit (\S+)$/, "限值 $1"], [/^Tokens beyond (\S+) over steps$/, "超出 $1 的词元随 step 的变化"],
    [/^(.+): relative difference, and noise \(dotted\)$/, "$1：相对差异与噪声（虚线）"], [/^step (\d+), in (.+)$/, "step $1，位于 $2"],
    [/^([\d,]+) more rows are in the table$/, "表格中还有 $1 行"],
  ];
  const pieces = [
    [/([\d,]+) with errors/, "$1 个有错误"], [/([\d,]+) with warnings/, "$1 个有告警"], [/([\d,]+) not compared/, "$1 个未比对"], [/all pass/, "全部通过"],
    [/([\d,]+) errors?/, "$1 个错误"], [/([\d,]+) warnings?/, "$1 个告警"], [/([\d,]+) results/, "$1 个结果"], [/([\d,]+) ranks?/, "$1 个 rank"],
    [/([\d,]+) steps?/, "$1 个 step"], [/([\d,]+) tokens/, "$1 个词元"], [/([\d,]+) differ\b/, "$1 个有差异"], [/(\S+%) beyond (\S+)/, "$1 超出 $2"],
    [/log-probabilities of/, "对数概率："],
  ];
  document.documentElement.lang = "zh-CN";
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const text = node.textContent.trim();
    if (!text || node.parentElement.closest("td, bdi, code, pre, script")) continue;
    let said = Object.hasOwn(words, text) ? words[text] : sentences.reduce((now, [pattern, better]) => now.replace(pattern, better), text);
    if (node.parentElement.matches("small, .badge")) said = pieces.reduce((now, [pattern, better]) => now.replace(pattern, better), said);
    if (said !== text) node.textContent = node.textContent.replace(text, () => said);
  }
  for (const name of ["placeholder", "aria-label"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      const text = element.getAttribute(name);
      if (Object.hasOwn(words, text)) element.setAttribute(name, words[text]);
    }
  }
}
