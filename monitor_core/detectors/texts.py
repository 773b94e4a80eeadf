"""What findings say to people, in English and Chinese. Plain text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from monitor_core.detectors.base import Finding

Language = Literal["en", "zh"]


class FindingText(NamedTuple):
    """A finding in words."""

    title: str
    evidence: str
    causes: tuple[str, ...]
    """Probable causes, likeliest first."""
    advice: tuple[str, ...]


KINDS: dict[Language, dict[str, str]] = {
    "en": {
        "loss_oscillation": "Loss oscillates",
        "gradient_vanish": "Gradients vanish",
        "step_time_spike": "Steps are slow",
        "non_finite": "NaN or infinity",
        "input_change": "Input shapes or types changed",
    },
    "zh": {
        "loss_oscillation": "Loss 振荡",
        "gradient_vanish": "梯度消失",
        "step_time_spike": "单步耗时突增",
        "non_finite": "出现 NaN 或无穷",
        "input_change": "输入形状或类型改变",
    },
}

EVIDENCE: dict[Language, dict[str, str]] = {
    "en": {
        "loss_oscillation": "std / mean reached {ratio:.3g} over {window:.0f} steps (threshold {threshold:.3g}), in {windows:.0f} windows",
        "gradient_vanish": "grad_norm below {threshold:.3g} in {steps:.0f} steps, smallest {smallest:.3g}",
        "step_time_spike": "{steps:.0f} steps above {threshold:.3g} x the median of {median_s:.3g} s, slowest {slowest_s:.3g} s",
        "non_finite": "{steps:.0f} steps whose loss or grad_norm is not a finite number",
        "input_change": "set {sets:.0f} of input shapes and types so far; the records' input_shapes and input_dtypes show it",
    },
    "zh": {
        "loss_oscillation": "{window:.0f} 步窗口内标准差 / 均值达到 {ratio:.3g}（阈值 {threshold:.3g}），共 {windows:.0f} 个窗口",
        "gradient_vanish": "{steps:.0f} 步的梯度范数低于 {threshold:.3g}，最小 {smallest:.3g}",
        "step_time_spike": "{steps:.0f} 步超过中位数 {median_s:.3g} s 的 {threshold:.3g} 倍，最慢 {slowest_s:.3g} s",
        "non_finite": "{steps:.0f} 步的 loss 或梯度范数不是有限数",
        "input_change": "至此第 {sets:.0f} 种输入形状与类型；见记录中的 input_shapes 和 input_dtypes",
    },
}

CAUSES: dict[Language, dict[str, str]] = {
    "en": {
        "lr_too_high": "the learning rate is too high",
        "loss_falling_fast": "the loss is still falling fast within the window (harmless early in a training)",
        "bad_batches": "some batches are very unlike the others",
        "saturated_activations": "activations are saturated (deep sigmoid or tanh)",
        "bad_initialisation": "the initialisation shrinks signals from layer to layer",
        "frozen_layers": "most layers are frozen or the loss has no path to them",
        "data_loader": "the data loader does not keep up",
        "memory_fragmentation": "device memory is fragmented or swapped",
        "other_load": "other work on the same machine, or a checkpoint being saved",
        "overflow_before": "overflow in mixed precision",
        "last_batch": "the last batch of an epoch is shorter",
        "data_changed": "the data pipeline gives other tensors than before",
    },
    "zh": {
        "lr_too_high": "学习率过高",
        "loss_falling_fast": "窗口内 loss 仍在快速下降（训练初期属正常）",
        "bad_batches": "个别批次与其他数据差异很大",
        "saturated_activations": "激活函数饱和（很深的 sigmoid 或 tanh）",
        "bad_initialisation": "初始化使信号逐层衰减",
        "frozen_layers": "多数层被冻结，或损失没有通路到达",
        "data_loader": "数据加载跟不上",
        "memory_fragmentation": "显存碎片或换页",
        "other_load": "同一台机器上的其他负载，或正在保存检查点",
        "overflow_before": "混合精度溢出",
        "last_batch": "每轮最后一个批次较短",
        "data_changed": "数据管道给出了与之前不同的张量",
    },
}

ADVICE: dict[Language, dict[str, str]] = {
    "en": {
        "lower_lr": "lower the learning rate, for example by half",
        "change_activation": "use ReLU-like activations, normalisation or residual connections",
        "change_initialisation": "change the initialisation",
        "gradient_checkpointing": "the article also suggests enabling gradient_checkpointing",
        "check_prefetch": "look at data_wait_time; raise the data loader's prefetch and workers",
        "check_memory": "look for memory fragmentation and other load",
        "restore_checkpoint": "go back to the last checkpoint before it",
        "clip_gradients": "clip gradients",
        "drop_remainder": "batch with drop_remainder=True: every new shape compiles a graph anew",
        "check_inputs": "compare the input_shapes and input_dtypes of this step and the one before",
    },
    "zh": {
        "lower_lr": "降低学习率，例如减半（lr_factor=0.5）",
        "change_activation": "改用 ReLU 类激活、归一化或残差连接",
        "change_initialisation": "调整初始化",
        "gradient_checkpointing": "文章还建议启用 gradient_checkpointing",
        "check_prefetch": "查看 data_wait_time；增大数据加载器的 prefetch 和并行度",
        "check_memory": "检查显存碎片和其他负载",
        "restore_checkpoint": "回到出现之前的检查点",
        "clip_gradients": "启用梯度裁剪",
        "drop_remainder": "batch 时用 drop_remainder=True：每种新形状都会重新编译图",
        "check_inputs": "比较这一步与前一步的 input_shapes 和 input_dtypes",
    },
}


def describe(finding: Finding, language: Language) -> FindingText:
    """The finding's texts; a kind or key from a newer version is shown by its own name."""
    return FindingText(
        KINDS[language].get(finding.kind, finding.kind),
        _evidence(EVIDENCE[language].get(finding.kind), finding.evidence),
        tuple(CAUSES[language].get(key, key) for key in finding.causes),
        tuple(ADVICE[language].get(key, key) for key in finding.advice),
    )


def one_line(finding: Finding, language: Language) -> str:
    """The finding for a log: where, what, why, and what to do."""
    text = describe(finding, language)
    return f"step {finding.first_step}: {text.title}: {text.evidence} -> {'; '.join(text.advice)}"


def _evidence(template: str | None, evidence: Mapping[str, float]) -> str:
    try:
        return template.format_map(evidence) if template else _plain(evidence)
    except (KeyError, ValueError):  # written by another version, with other numbers
        return _plain(evidence)


def _plain(evidence: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())
