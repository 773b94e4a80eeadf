"""What ``msmon verify`` says, in English and Chinese. ``{path}`` and the like are filled in."""

from __future__ import annotations

from monitor_core.detectors.texts import Language

PASSED: dict[Language, str] = {"en": "passed", "zh": "通过"}
FAILED: dict[Language, str] = {"en": "FAILED", "zh": "未通过"}

LAYERS: dict[Language, tuple[str, str, str, str]] = {
    "en": ("the configuration reached the model", "the hooks are bound", "records appear", "the files can be read"),
    "zh": ("配置已注入模型", "钩子已注册", "采集已触发", "数据可解析"),
}

SEEN: dict[Language, dict[str, str]] = {
    "en": {
        "attached": "the Monitor is the model's",
        "not_attached": "the model has no Monitor, or another one",
        "disabled": "the Monitor is disabled",
        "manifest": "run.json of {name!r} with {attempts} attempts",
        "no_manifest": "{files} monitor files but no readable run.json in {path}",
        "nothing": "neither run.json nor monitor files in {path}",
        "own_loop": "a hand-written loop, recorded by monitor.step: no hooks needed",
        "hooks": "{hooks} hooks on the train network, 4 expected",
        "records": "{records} records in {files} files, the last training: {status} ({reason})",
        "damaged": "{count} damaged places, first in {file} at byte {offset}: {why}",
        "keys_missing": "formats: {formats}; never measured: {keys}",
        "parsed": "step, loss, step_time, grad_norm and timestamp in every format: {formats}",
    },
    "zh": {
        "attached": "模型持有这个 Monitor",
        "not_attached": "模型没有 Monitor，或持有另一个",
        "disabled": "Monitor 已关闭",
        "manifest": "run.json：{name!r}，共 {attempts} 次训练",
        "no_manifest": "{path} 中有 {files} 个监控文件，但没有可读的 run.json",
        "nothing": "{path} 中既没有 run.json 也没有监控文件",
        "own_loop": "手写循环，由 monitor.step 记录：不需要钩子",
        "hooks": "训练网络上有 {hooks} 个钩子，应为 4 个",
        "records": "{files} 个文件共 {records} 条记录，最近一次训练：{status}（{reason}）",
        "damaged": "{count} 处损坏，第一处在 {file} 第 {offset} 字节：{why}",
        "keys_missing": "格式：{formats}；从未测到：{keys}",
        "parsed": "每种格式都有 step、loss、step_time、grad_norm、timestamp：{formats}",
    },
}

#: Key -> likely cause, then the fix.
CAUSES: dict[Language, dict[str, tuple[str, str]]] = {
    "en": {
        "disabled": (
            "likely cause: enable=False, or MSMON_ENABLE=0 in the environment",
            "fix: Monitor(enable=True), and unset MSMON_ENABLE",
        ),
        "not_attached": (
            "likely cause: the Monitor was not handed to this model (a dict is refused)",
            "fix: Model(..., monitor=monitor), or model.train(..., callbacks=[monitor])",
        ),
        "no_manifest": (
            "likely cause: run.json was deleted or damaged, or the files were copied without it",
            "fix: nothing is lost; the records are read without it, and the next training writes it anew",
        ),
        "nothing": (
            "likely cause: no training ran with a Monitor on this log_dir; notebooks often run in another working directory",
            "fix: use the absolute path that the Monitor prints when it is built",
        ),
        "hooks": (
            "likely cause: the training did not go through Model.train(), or the Monitor was disabled",
            "fix: train with Model.train(), or use 'with monitor.step(...)' in a hand-written loop",
        ),
        "never_fired": (
            "likely cause: no step was finished, or the training ended before its first flush",
            "fix: run at least one step; call monitor.flush() to wait for the files",
        ),
        "dropped": (
            "likely cause: the disk refused to be written to ({dropped} records were dropped)",
            "fix: free disk space or choose another log_dir",
        ),
        "damaged": (
            "likely cause: the writing process was killed, or the file was edited or copied incompletely",
            "fix: all other records are read; 'msmon inspect' lists every place",
        ),
        "keys_missing": (
            "likely cause: a switch of export_options is off, or it cannot be measured here: {why}",
            "fix: include_loss and include_grad on; with a custom step cell keep its 'optimizer' attribute",
        ),
    },
    "zh": {
        "disabled": (
            "可能原因：enable=False，或环境变量 MSMON_ENABLE=0",
            "解决：Monitor(enable=True)，并取消 MSMON_ENABLE",
        ),
        "not_attached": (
            "可能原因：没有把 Monitor 交给这个模型（dict 会被拒绝）",
            "解决：Model(..., monitor=monitor)，或 model.train(..., callbacks=[monitor])",
        ),
        "no_manifest": (
            "可能原因：run.json 被删除或损坏，或复制时遗漏",
            "解决：数据没有丢失；没有它也能读取记录，下一次训练会重新写入",
        ),
        "nothing": (
            "可能原因：没有训练使用过这个 log_dir 的 Monitor；notebook 的工作目录常常不同",
            "解决：使用 Monitor 构造时打印的绝对路径",
        ),
        "hooks": (
            "可能原因：训练没有走 Model.train()，或 Monitor 已关闭",
            "解决：用 Model.train() 训练，或在手写循环里用 with monitor.step(...)",
        ),
        "never_fired": (
            "可能原因：没有完成任何一步，或训练在第一次写盘前结束",
            "解决：至少运行一步；用 monitor.flush() 等待写盘",
        ),
        "dropped": ("可能原因：磁盘拒绝写入（丢弃了 {dropped} 条记录）", "解决：释放磁盘空间，或更换 log_dir"),
        "damaged": (
            "可能原因：写入进程被杀，或文件被编辑、复制不完整",
            "解决：其他记录都能读取；msmon inspect 会列出每一处",
        ),
        "keys_missing": (
            "可能原因：export_options 的开关没有打开，或这里无法测量：{why}",
            "解决：打开 include_loss 和 include_grad；自定义单步网络请保留 optimizer 属性",
        ),
    },
}
