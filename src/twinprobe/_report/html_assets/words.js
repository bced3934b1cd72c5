// The words of the page in English and Chinese. What the comparison itself wrote (names, reasons) stays as it is.

const ENGLISH = {
  skip: "Skip to the table", language: "中文", agree_title: "Do the results agree?", show_row: "Show this row", counts: "Counts",
  plot_title: "Relative error along execution order", plot_hint: "Drag to zoom, click a point to see its row", whole: "Whole run",
  plot_help: "Relative error of every row. Left and right arrows walk through the points, Enter shows the row.",
  rows_title: "Rows", search: "Search all columns", verdicts: "Verdicts", origin: "Origin", any: "any", injected: "injected",
  inherited: "inherited", none: "none", clear: "Clear", columns: "Columns", empty: "No row matches these filters.",
  table_help: "Result table. Arrow keys move between rows, Enter opens the details.", details: "Details of the row",
  runs_title: "The two runs", error: "error", warning: "warning", pass: "pass", errors: "errors", warnings: "warnings",
  rows: "rows", matched: "matched", target_only: "only in target", golden_only: "only in golden", unreadable: "unreadable",
  only_these: "Show only these rows", noise: "expected noise", no_divergence: "No divergence", agree: "The two runs agree",
  agree_noise: "The two runs agree within noise", apart: "The results differ, and no single call stands out", one_sided: "{n} of {all} rows are in one run only.", no_output: "No output differs whose inputs agree", all_pass: "All {n} rows pass.",
  say_what: "The warnings and errors in the table say what was seen.", first: "First divergence", inside: "in {module}", row: "row {n}",
  unread: "{rows} could not be read: a difference there may have gone unnoticed.", against: "{target} against {golden}",
  n_rows: "{n} rows", n_of_rows: "{n} of {all} rows", target: "target", golden: "golden", path: "path", framework: "framework", task: "task",
  level: "level", calls: "calls", values: "values", close: "Close", close_details: "Close the details", both: "Both sides",
  measured: "Measured", stack: "Call stack, innermost first", sort_by: "Sort by {column}", equal: "equal", no_value: "no value",
  infinite: "inf, NaN", first_mark: "first divergence", relative_error: "relative error {n}", wider: "Make the details wider",
  row_axis: "row", inside_title: "Inside the tensor", loss: "loss", outputs: "outputs", "parameter gradients": "parameter gradients", "updated parameters": "updated parameters",
  agrees_with: "{what} agree ({size})", differs_with: "{what} differ ({size})", one_agrees: "{what} agrees ({size})",
  one_differs: "{what} differs ({size})", worst: "worst {share}, {eps} eps",
};

const CHINESE = {
  skip: "跳到表格", language: "English", agree_title: "结果是否一致？", show_row: "定位到该行", counts: "计数",
  plot_title: "相对误差随执行顺序的变化", plot_hint: "拖动放大，点击数据点查看对应行", whole: "全部",
  plot_help: "每一行的相对误差。左右方向键在数据点间移动，Enter 显示对应行。",
  rows_title: "行", search: "搜索所有列", verdicts: "结论", origin: "来源", any: "全部", injected: "此处引入",
  inherited: "来自输入", none: "无", clear: "清除", columns: "列", empty: "没有符合条件的行。",
  table_help: "结果表。方向键在行间移动，Enter 打开详情。", details: "该行详情",
  runs_title: "两次运行", error: "错误", warning: "告警", pass: "通过", errors: "错误", warnings: "告警",
  rows: "行", matched: "已匹配", target_only: "仅待调试侧", golden_only: "仅标杆侧", unreadable: "无法读取",
  only_these: "只显示这些行", noise: "预期噪声", no_divergence: "无分歧", agree: "两次运行一致",
  agree_noise: "两次运行在噪声范围内一致", apart: "结果不一致，但没有突出的单个调用", one_sided: "{all} 行中有 {n} 行仅存在于一侧。", no_output: "没有输入一致而输出不同的调用", all_pass: "全部 {n} 行通过。",
  say_what: "表中的告警和错误说明了所见差异。", first: "首个分歧点", inside: "位于 {module}", row: "第 {n} 行",
  unread: "{n} 行无法读取：其中的差异可能未被发现。", against: "{target} 对比 {golden}",
  n_rows: "{n} 行", n_of_rows: "{all} 行中的 {n} 行", target: "待调试侧", golden: "标杆侧", path: "路径", framework: "框架", task: "任务",
  level: "级别", calls: "调用数", values: "数值个数", close: "关闭", close_details: "关闭详情", both: "两侧",
  measured: "度量", stack: "调用栈，最内层在前", sort_by: "按 {column} 排序", equal: "相等", no_value: "无数值",
  infinite: "inf、NaN", first_mark: "首个分歧点", relative_error: "相对误差 {n}", wider: "调整详情宽度",
  row_axis: "行", inside_title: "张量内部", loss: "损失", outputs: "输出", "parameter gradients": "参数梯度", "updated parameters": "更新后的参数",
  agrees_with: "{what}一致（{size}）", differs_with: "{what}不一致（{size}）", one_agrees: "{what}一致（{size}）",
  one_differs: "{what}不一致（{size}）", worst: "最差 {share}，{eps} eps",
};

let words = ENGLISH;

function say(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

// Fill in what the page itself says; ``language`` is "zh", "en", or empty for that of the browser.
function speak(language) {
  const chinese = language ? language === "zh" : navigator.language.toLowerCase().startsWith("zh");
  words = chinese ? CHINESE : ENGLISH;
  document.documentElement.lang = chinese ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say(element.dataset.label));
  for (const element of document.querySelectorAll("[data-hint]")) element.placeholder = say(element.dataset.hint);
}
