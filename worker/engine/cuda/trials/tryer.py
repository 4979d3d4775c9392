"""Answers what is asked of trials, by trying it on a device."""

from __future__ import annotations

from worker.engine.cuda.attention.attention_trial import (
    AttentionTrial,
    KernelUnavailable,
    WrongResults,
)
from worker.engine.cuda.trials.trial_messages import (
    Answer,
    AttentionPlace,
    AttentionQuestion,
    Found,
    Question,
    TilesQuestion,
    Took,
    Unavailable,
    dtype_of,
)
from worker.engine.device.gpu_device import GpuDevice


class Tryer:
    """Holds memory on the device as long as it lives: that of the last kind of trial."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._attention: tuple[AttentionPlace, AttentionTrial] | None = None

    def answer(self, question: Question) -> Answer:
        """Never an exception: what compilers, loaders and drivers raise has no common class."""
        try:
            if isinstance(question, AttentionQuestion):
                trial = self._trial_of(question.place)
                return Took(
                    trial.seconds(question.part, question.kernel, compares=question.compares)
                )
            self._attention = None
            return Found(self._fastest(question))
        except WrongResults as exc:
            return Unavailable(str(exc), is_lasting=True)
        except KernelUnavailable as exc:
            return self._after_error(str(exc))
        except Exception as exc:
            return self._after_error(f"{type(exc).__name__}: {str(exc)[:300]}")

    def _after_error(self, reason: str) -> Unavailable:
        """A missing compiler and short memory may pass. An error of the GPU stays with this
        process: whatever it asks of the GPU fails from now on.
        """
        try:
            self._device.free_bytes()
        except Exception:
            return Unavailable(reason, is_lasting=True, is_fatal=True)
        return Unavailable(reason)

    def _trial_of(self, place: AttentionPlace) -> AttentionTrial:
        if self._attention is None or self._attention[0] != place:
            from worker.engine.cuda.attention.attention_kernels import AttentionKernels

            task, step = place.task(), place.step()
            kernels = AttentionKernels(self._device, step, task.dtype)
            trial = AttentionTrial(kernels.make_part, self._device, task, step)
            self._attention = place, trial
        return self._attention[1]

    def _fastest(self, question: TilesQuestion) -> tuple[int, int, int] | None:
        from worker.engine.cuda.layers.linear_trial import LinearTrial

        shape = question.num_outputs, question.width
        trial = LinearTrial(self._device, shape, question.num_layers, dtype_of(question.dtype))
        return trial.fastest(question.num_rows)
