"""OCRSession: a loaded model and what to call on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor

from ocr_phases.collectors import machine
from ocr_phases.collectors.hooks import stage_hooks
from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import Hinted, Interrupted, OcrPhasesError, explain_wrong_calls
from ocr_phases.inputs.packing import DeviceInputs, PageInputs
from ocr_phases.inputs.processed import PackedPages, ProcessedInputs, ProcessedPages
from ocr_phases.inputs.rows import Pages
from ocr_phases.measure.cells import Cell, CellOutcome, ModelChanges
from ocr_phases.measure.loaded_model import LoadedModel
from ocr_phases.measure.measurement import Measurement, execution
from ocr_phases.measure.runs import OnProgress, OnRunTokens
from ocr_phases.models.folders import local_folder
from ocr_phases.models.load import adopt, load_checkpoint
from ocr_phases.models.references import references
from ocr_phases.models.text_model import language_model_text, position_limit
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.sweep import SweepResult
from ocr_phases.session.sweeps import Sweep
from ocr_phases.settings import (
    ModelSettings,
    Request,
    RunSettings,
    SamplingSettings,
    Strategy,
    Vision,
    is_address,
)
from ocr_phases.show.section import facts_bundle, facts_text
from ocr_phases.stages import stage_title
from ocr_phases.steps import phases
from ocr_phases.steps.decode_kernels import decode_execution
from ocr_phases.steps.sampling import Sampler
from ocr_phases.text import millions_text
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.engines.session import ServerSession


class OCRSession(Hinted):
    """A loaded model of one of the families, its tokenizer and device.

    ``model`` and ``tokenizer`` are the objects of the libraries they come from and may be used
    directly.
    """

    def __init__(self, loaded_model: LoadedModel, settings: ModelSettings | None = None) -> None:
        #: The model with what its measurements share.
        self.loaded_model = loaded_model
        #: What it was loaded with; None for a model object.
        self.settings = settings
        checkpoint = loaded_model.checkpoint
        self.checkpoint = checkpoint
        self.model: Any = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.family = checkpoint.family
        self.interface = checkpoint.interface
        self.device = checkpoint.device
        self.dtype = checkpoint.dtype
        #: The ids that end a generation and that fill rows.
        self.eos_id = checkpoint.eos_id
        self.pad_id = checkpoint.pad_id
        #: Text to ids, without special tokens around it.
        self.encode = checkpoint.encode
        #: What the last `run_inference` measured, also where it was interrupted; None without a
        #: repeat.
        self.last_run: PhaseRun | None = None

    # -- loading ----------------------------------------------------------------------------------

    @classmethod
    @explain_wrong_calls
    def load(
        cls,
        model: str | Path = "tiny",
        *,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16", "float16"] | torch.dtype | None = None,
        attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None,
        revision: str | None = None,
        implementation: Literal["native", "vendor"] = "native",
        trust_remote_code: bool = False,
        cuda_calls: Literal["refuse", "ignore"] = "refuse",
        family: str | None = None,
        engine: Literal["vllm", "sglang", "llama.cpp", "ollama", "other"] | None = None,
        extra_body: str | None = None,
    ) -> OCRSession:
        """Load a model.

        Parameters
        ----------
        model : str or Path, default "tiny"
            The model: tiny (built in), dummy[:FAMILY] (random weights), a folder or a hub id.
            The address of a server (``http://HOST:PORT/v1#MODEL``) is connected to, see
            `connect`.
        device : str, default "auto"
            Where to run: auto (a CUDA GPU, otherwise the CPU), cpu, cuda, cuda:N or mps. Refused
            where torch sees no such device.
        dtype : str or torch.dtype, optional
            Dtype of the weights: float32, bfloat16 or float16; the default is the device's. That is
            float32 on a CPU, bfloat16 on a GPU that computes with it, and float16 on other GPUs.
        attention : str, optional
            Implementation of attention: eager, sdpa or flash_attention_2. By default it is sdpa if
            the model's class has it, and otherwise eager.
        revision : str, optional
            Commit, tag or branch of a model on the hub; the default is its main branch. The
            published class needs a full commit hash.
        implementation : {"native", "vendor"}, default "native"
            The model's class: native (transformers' class) or vendor (the checkpoint's own code).
        trust_remote_code : bool, default False
            Allow the checkpoint's Python code to run, as vendor needs.
        cuda_calls : {"refuse", "ignore"}, default "refuse"
            For vendor on a CPU: refuse or ignore the .cuda() calls in its code.
        family : str, optional
            A server's model family: deepseek-ocr, deepseek-ocr-2, unlimited-ocr, unknown.
            Refused for a model that is loaded here.
        engine : str, optional
            Server software if a proxy hides it: vllm, sglang, llama.cpp, ollama, other. It
            changes nothing for a model that is loaded here.
        extra_body : str, optional
            A JSON object that is added to each request: {"priority": 1} (servers only). It changes
            nothing for a model that is loaded here.

        Returns
        -------
        OCRSession
            A session; for the address of a server an `ocr_phases.engines.session.ServerSession`.

        Raises
        ------
        OcrPhasesError
            Where the checkpoint, the device or what its files name cannot be had.

        Examples
        --------
        >>> session = OCRSession.load("tiny", device="cpu")
        """
        if is_address(model):
            return cls.connect(  # type: ignore[return-value]  # it has the same calls
                str(model), family=family, engine=engine, extra_body=extra_body
            )
        settings = ModelSettings(
            model=str(model) if isinstance(model, Path) else model,
            device=device,
            dtype=dtype,  # type: ignore[arg-type]  # of a torch.dtype the name is kept
            attention=attention,
            revision=revision,
            implementation=implementation,
            trust_remote_code=trust_remote_code,
            cuda_calls=cuda_calls,
            family=family,
            engine=engine,
            extra_body=extra_body,
        )
        with seldom_collected():
            return cls(LoadedModel(load_checkpoint(settings)), settings)

    @classmethod
    @explain_wrong_calls
    def from_local(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16", "float16"] | torch.dtype | None = None,
        attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None,
        revision: str | None = None,
        implementation: Literal["native", "vendor"] = "native",
        trust_remote_code: bool = False,
        cuda_calls: Literal["refuse", "ignore"] = "refuse",
    ) -> OCRSession:
        """Load a checkpoint folder, and nothing but a folder.

        Parameters
        ----------
        folder : str or Path
            The folder of a checkpoint.
        device : str, default "auto"
            Where to run: auto (a CUDA GPU, otherwise the CPU), cpu, cuda, cuda:N or mps. Refused
            where torch sees no such device.
        dtype : str or torch.dtype, optional
            Dtype of the weights: float32, bfloat16 or float16; the default is the device's. That is
            float32 on a CPU, bfloat16 on a GPU that computes with it, and float16 on other GPUs.
        attention : str, optional
            Implementation of attention: eager, sdpa or flash_attention_2. By default it is sdpa if
            the model's class has it, and otherwise eager.
        revision : str, optional
            Commit, tag or branch of a model on the hub; the default is its main branch. The
            published class needs a full commit hash.
        implementation : {"native", "vendor"}, default "native"
            The model's class: native (transformers' class) or vendor (the checkpoint's own code).
        trust_remote_code : bool, default False
            Allow the checkpoint's Python code to run, as vendor needs.
        cuda_calls : {"refuse", "ignore"}, default "refuse"
            For vendor on a CPU: refuse or ignore the .cuda() calls in its code.

        Raises
        ------
        OcrPhasesError
            Where there is no such folder, and as `load` does.
        """
        return cls.load(
            str(local_folder(str(folder), local_only=True)),
            device=device,
            dtype=dtype,
            attention=attention,
            revision=revision,
            implementation=implementation,
            trust_remote_code=trust_remote_code,
            cuda_calls=cuda_calls,
        )

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any, *, name: str | None = None) -> OCRSession:
        """Measure a model that you loaded, patched, merged with a LoRA or quantised, as it is.

        Parameters
        ----------
        model : PreTrainedModel
            The model, on its device. Device, dtype and attention are its own, and its family is
            that of its class and config.
        tokenizer : PreTrainedTokenizerFast or ProcessorMixin
            The checkpoint's tokenizer. A model of no known family needs its processor instead.
        name : str, optional
            The model's name in the record; by default its own, or that of its class.

        Returns
        -------
        OCRSession
            A session.

        Raises
        ------
        OcrPhasesError
            For a class that cannot be driven, for modules that the model's family has and it lacks,
            and for a tokenizer of another model.
        """
        return cls(LoadedModel(adopt(model, tokenizer, name=name)))

    def with_model(self, *, attention: str | None = None, dtype: str | None = None) -> OCRSession:
        """A session of the same weights with another ``attention`` or ``dtype``; this one where
        none differs.

        The values are those of `ModelSettings`, None keeps what there is. The weights are loaded
        once more: two models take memory while both sessions live. Raises `OcrPhasesError` as
        `load` does, and for a model object, which its owner changes.
        """
        own_attention = self.model.config._attn_implementation
        own_dtype = str(self.dtype).removeprefix("torch.")
        if attention in (None, own_attention) and dtype in (None, own_dtype):
            return self
        if self.settings is None:
            raise OcrPhasesError(
                "A model object is measured as it is: change it and give it to from_model."
            )
        # Other words than those of the settings are refused there.
        settings = self.settings
        if attention is not None:
            settings = replace(settings, attention=attention)  # type: ignore[arg-type]
        if dtype is not None:
            settings = replace(settings, dtype=dtype)  # type: ignore[arg-type]
        with seldom_collected():
            return type(self)(LoadedModel(load_checkpoint(settings)), settings)

    def _load_changed(self, changes: ModelChanges) -> LoadedModel:
        """The model with another attention or dtype, for a sweep."""
        return self.with_model(attention=changes.attention, dtype=changes.dtype).loaded_model

    @classmethod
    def connect(
        cls,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        reference: Any = None,
        patience: float = 300.0,
        first_token_timeout: float = 300.0,
        answer_timeout: float = 3600.0,
        family: str | None = None,
        engine: str | None = None,
        extra_body: Mapping[str, Any] | str | None = None,
    ) -> ServerSession:
        """A session on a running server: `ocr_phases.connect`, with the same arguments."""
        from ocr_phases.engines.session import connect

        return connect(
            url,
            model,
            api_key,
            reference=reference,
            patience=patience,
            first_token_timeout=first_token_timeout,
            answer_timeout=answer_timeout,
            family=family,
            engine=engine,
            extra_body=extra_body,
        )

    # -- the phases, one by one -------------------------------------------------------------------

    @explain_wrong_calls
    def run_prefill(
        self,
        inputs: ProcessedPages | ProcessedInputs | PageInputs | DeviceInputs,
        timeline: Timeline | None = None,
        *,
        sampler: Sampler | None = None,
        cache: Any = None,
        step: phases.Step | None = None,
        all_logits: bool = False,
    ) -> phases.DecodeState:
        """One forward over the whole prompt on this session's model: vision, KV cache and the first
        token.

        Parameters
        ----------
        inputs : PageInputs, DeviceInputs, ProcessedPages or ProcessedInputs
            What `prepare` made; it is copied to the device where it is not there yet.
        timeline : Timeline, optional
            Where the times of the stages go.
        sampler, cache, step, all_logits
            As for `ocr_phases.prefill`.

        Returns
        -------
        DecodeState
            The KV cache, the mask and the tokens so far: what `run_decode_step` continues.

        Raises
        ------
        OcrPhasesError
            For a model in training mode, or spread over several devices.
        """
        if isinstance(inputs, PageInputs | ProcessedPages):
            inputs = inputs.to(self.device, self.dtype)
        with execution(self.device):
            return phases.prefill(
                self.model,
                inputs,
                timeline,
                sampler=sampler,
                cache=cache,
                step=step,
                all_logits=all_logits,
            )

    @explain_wrong_calls
    def run_decode_step(
        self, state: phases.DecodeState, timeline: Timeline | None = None
    ) -> Tensor:
        """One more token of each row, from the KV cache.

        Parameters
        ----------
        state : DecodeState
            What `run_prefill` returned; the step changes it.
        timeline : Timeline, optional
            Where the times of the step's stages go.

        Returns
        -------
        Tensor
            The new tokens, int64 [B].

        Raises
        ------
        OcrPhasesError
            Where a rule of decode is broken: a token per row, no image, a cache that grows by one.
        """
        hooks = stage_hooks(self.model, self.interface, timeline or NoTimeline(), [])
        with execution(self.device), decode_execution(self.model), hooks:
            return phases.decode_step(self.model, state, timeline)

    def __repr__(self) -> str:
        settings = f"device={self.device!r}, dtype={self.dtype}"
        return f"{type(self).__name__}({self.checkpoint.name!r}, {settings})"

    def _facts(self) -> dict[str, Any]:
        longest = position_limit(self.model)
        parameters = self.interface.parameters(self.model)
        return {
            "family": f"{self.family.name}, {self.interface.implementation} class",
            "device": f"{machine.describe_device(self.device)['name']} ({self.device})",
            "dtype": str(self.dtype).removeprefix("torch."),
            "parameters": {
                stage_title(name): millions_text(count) for name, count in parameters.items()
            },
            "weights_bytes": self.model.get_memory_footprint(return_buffers=False),
            "language model": language_model_text(self.model),
            "longest sequence": "no limit" if longest is None else f"{longest:,} tokens",
        }

    def __str__(self) -> str:
        return facts_text(f"Model {self.checkpoint.name}", self._facts())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return facts_bundle(f"Model {self.checkpoint.name}", self._facts())

    def references(self) -> pd.DataFrame:
        """Where the loaded source does what is measured (`ocr_phases.models.references`)."""
        return references(self.model, self.checkpoint.revision)

    # -- the measurement --------------------------------------------------------------------------

    @explain_wrong_calls
    def run_inference(
        self,
        page: Pages | None,
        prompt: str | Sequence[str] = "markdown",
        *,
        preset: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        max_new_tokens: int | None = None,
        infer: SamplingSettings | Mapping[str, Any] | str | None = None,
        repeats: int = 3,
        warmup: int = 1,
        warm_once: bool = False,
        strategy: Strategy = "eager",
        vision: Vision = "eager",
        threads: int | None = None,
        grounding: bool | None = None,
        ignore_eos: bool | None = None,
        eos_check_every: int | None = None,
        first_token: Literal["prefill", "redecode"] = "prefill",
        seed: int = 0,
        autocast: bool | None = None,
        generate: bool = False,
        return_text: bool = True,
        embed_page: bool = True,
        verify: bool = False,
        token_probabilities: bool = True,
        ceilings: bool = True,
        phase_energy: bool = False,
        kernels: bool = False,
        kernel_steps: int = 32,
        kernel_trace: str | Path | None = None,
        price_per_hour: float | None = None,
        on_tokens: Callable[[int, list[list[int]]], object] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> PhaseRun:
        """Measure a page: ``warmup`` runs that are not recorded, then ``repeats`` recorded ones.

        Each run prepares the page, prefills and decodes from the same inputs and seed. Preparing a
        strategy is timed separately, and kept for later runs of the same shapes. What is measured
        besides (``verify``, ``token_probabilities``, ``ceilings``, ``phase_energy``, ``kernels``)
        runs after everything that is timed.

        Parameters
        ----------
        page : str, Path, bytes, PIL.Image.Image, a sequence of them, or None
            A page; several are one batch, or the pages of one prompt. None is a prompt without an
            image, which has no vision.
        prompt : str or sequence of str, default "markdown"
            What to ask the model: markdown, ocr, free, figure, describe, locate:words, multipage,
            any text. A list has one prompt per row of the batch.
        preset : str, optional
            How the page is cut into views: tiny, small, base, large, gundam, small768, base1024,
            crop; or the model's own. `OcrPhasesError` for a name that the model's family does not
            have.
        base_size : int, optional
            Side of the whole page's view in pixels, if the page is cut into crops; a multiple of
            64, as ``image_size`` is. Sizes are refused where the model's family is unknown.
        image_size : int, optional
            Side of a crop in pixels, or of the only view of a page that is not cut.
        crop_mode : bool, optional
            Cut a large page into crops; the default is what the preset does.
        min_crops : int, optional
            Minimum number of crops of a page that is cut; the default is 2.
        max_crops : int, optional
            Maximum number of crops; the default depends on the family: 9, 6 or 32.
        max_new_tokens : int, optional
            Maximum number of new tokens, including the first; the default is 512. With a published
            ``infer`` it is that one's limit. Refused where prompt and new tokens do not fit the
            model's positions.
        infer : mapping or str, optional
            Sampling: values of temperature, top_p, top_k, ..., or a name (published). Also as a
            mapping: ``do_sample``, ``temperature`` (0 means greedy), ``top_p``, ``top_k``,
            ``no_repeat_ngram_size``, ``no_repeat_ngram_window``, ``whitelist_token_ids``. The
            default is greedy.
        repeats : int, default 3
            Number of measured runs; a time is the median over them.
        warmup : int, default 1
            Number of warm-up runs before the measured ones; they are not recorded.
        warm_once : bool, default False
            Skip the warm-up if the loaded model has run inputs of this shape before: pages that are
            cut alike, with as many prompt tokens and new ones. The record says so
            (``run.request.warmed_before``).
        strategy : {"eager", "cuda_graph", "compiled"}, default "eager"
            How the language model runs. ``cuda_graph`` is refused without a CUDA device.
        vision : {"eager", "cuda_graph", "compiled"}, default "eager"
            How the vision encoders run. ``cuda_graph`` is refused without a CUDA device.
        threads : int, optional
            Number of CPU threads that torch uses; the default is torch's own choice. On a shared
            machine one thread is often faster and steadier.
        grounding : bool, optional
            Ask for boxes in a prompt of your own (<|grounding|>); the default is yes. It changes
            neither a named prompt nor a text with its own ``<image>``.
        ignore_eos : bool, optional
            Continue after the end token; by default only random weights do so.
        eos_check_every : int, optional
            Look for the end token every N steps; default: 1 in eager, else 16. Tokens made after
            the end token are cut.
        first_token : {"prefill", "redecode"}, default "prefill"
            What computes token 1: prefill, or a decode step (redecode). The tokens are the same;
            with ``redecode`` token 1 has a decode latency.
        seed : int, default 0
            Seed of the random numbers for sampling.
        autocast : bool, optional
            Run under torch's bfloat16 autocast, as published does; the default is no.
        generate : bool, default False
            Time model.generate() as a whole, instead of prefill and decode. Refused together with
            ``first_token="redecode"``, ``verify`` or another ``strategy``.
        return_text : bool, default True
            Keep the text that the model wrote in the record.
        embed_page : bool, default True
            Keep the image of the page in the record.
        verify : bool, default False
            Compare the tokens with those of model.generate(), after the timed runs.
        token_probabilities : bool, default True
            Compute each token's probability, after the timed runs.
        ceilings : bool, default True
            Measure the device's peak rates, after the timed runs.
        phase_energy : bool, default False
            Measure each phase's energy, by repeating it after the timed runs. Each takes some four
            seconds. Where the device has no counter of energy, the record says so.
        kernels : bool, default False
            Record the kernels and host syncs of each stage in one more run (CUDA only). Refused
            without a CUDA device.
        kernel_steps : int, default 32
            Maximum number of decode steps whose kernels are recorded.
        kernel_trace : str or Path, optional
            File for a Chrome trace of the kernels (.json.gz). It needs ``kernels``.
        price_per_hour : float, optional
            Price of the machine per hour, for the price of 1,000 pages. It changes no measurement.
        on_tokens : callable, optional
            Called as ``on_tokens(repeat, new ids of each row)`` after the prefill and while
            decoding; repeat -1 is warm-up. It may raise `Stopped`, which ends the measurement.
        progress : callable, optional
            Called as ``progress(runs done, runs in all)`` before the first run, when all is set up,
            and after each. It may raise `Stopped`. Without it a notebook's cell shows a bar.

        Returns
        -------
        PhaseRun
            The measurement, which shows itself in a notebook. It is kept as ``session.last_run``,
            too.

        Raises
        ------
        OcrPhasesError
            For a request that contradicts itself, or that the model or the device cannot hold.
        Stopped
            Where a callback ended the measurement before the first repeat was finished; later, the
            record of the finished repeats is returned.
        Interrupted
            For a KeyboardInterrupt, which it is too; ``session.last_run`` then has the finished
            repeats.

        Examples
        --------
        >>> run = session.run_inference("page.png", max_new_tokens=64, repeats=3)  # doctest: +SKIP
        >>> run["inter_token_ms"]  # doctest: +SKIP
        """
        settings = RunSettings(
            prompt=prompt,
            preset=preset,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            max_new_tokens=max_new_tokens,
            infer=infer,
            repeats=repeats,
            warmup=warmup,
            warm_once=warm_once,
            strategy=strategy,
            vision=vision,
            threads=threads,
            grounding=grounding,
            ignore_eos=ignore_eos,
            eos_check_every=eos_check_every,
            first_token=first_token,
            seed=seed,
            autocast=autocast,
            generate=generate,
            return_text=return_text,
            embed_page=embed_page,
            verify=verify,
            token_probabilities=token_probabilities,
            ceilings=ceilings,
            phase_energy=phase_energy,
            kernels=kernels,
            kernel_steps=kernel_steps,
            kernel_trace=kernel_trace,
            price_per_hour=price_per_hour,
        )
        measurement = Measurement(self.loaded_model, page, settings)
        return self._keep(measurement, on_tokens, progress)

    def _keep(
        self, measurement: Measurement, on_tokens: OnRunTokens | None, progress: OnProgress | None
    ) -> PhaseRun:
        """Run a measurement, and keep as ``last_run`` what it measured, however it ends."""
        self.last_run = None
        try:
            return measurement.run(on_tokens, progress)
        finally:
            self.last_run = measurement.result

    @explain_wrong_calls
    def check_request(
        self,
        page: Pages | None,
        prompt: str | Sequence[str] = "markdown",
        *,
        preset: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        max_new_tokens: int | None = None,
        infer: SamplingSettings | Mapping[str, Any] | str | None = None,
        repeats: int = 3,
        warmup: int = 1,
        warm_once: bool = False,
        strategy: Strategy = "eager",
        vision: Vision = "eager",
        threads: int | None = None,
        grounding: bool | None = None,
        ignore_eos: bool | None = None,
        eos_check_every: int | None = None,
        first_token: Literal["prefill", "redecode"] = "prefill",
        seed: int = 0,
        autocast: bool | None = None,
        generate: bool = False,
        return_text: bool = True,
        embed_page: bool = True,
        verify: bool = False,
        token_probabilities: bool = True,
        ceilings: bool = True,
        phase_energy: bool = False,
        kernels: bool = False,
        kernel_steps: int = 32,
        kernel_trace: str | Path | None = None,
        price_per_hour: float | None = None,
    ) -> Request:
        """What `run_inference` would measure, with every default filled in; nothing is run.

        Parameters
        ----------
        page, prompt and all others
            As for `run_inference`.

        Returns
        -------
        Request
            The settings as they would run.

        Raises
        ------
        OcrPhasesError
            As `run_inference` would before it runs.
        """
        settings = RunSettings(
            prompt=prompt,
            preset=preset,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            max_new_tokens=max_new_tokens,
            infer=infer,
            repeats=repeats,
            warmup=warmup,
            warm_once=warm_once,
            strategy=strategy,
            vision=vision,
            threads=threads,
            grounding=grounding,
            ignore_eos=ignore_eos,
            eos_check_every=eos_check_every,
            first_token=first_token,
            seed=seed,
            autocast=autocast,
            generate=generate,
            return_text=return_text,
            embed_page=embed_page,
            verify=verify,
            token_probabilities=token_probabilities,
            ceilings=ceilings,
            phase_energy=phase_energy,
            kernels=kernels,
            kernel_steps=kernel_steps,
            kernel_trace=kernel_trace,
            price_per_hour=price_per_hour,
        )
        return Measurement(self.loaded_model, page, settings).request

    @explain_wrong_calls
    def prepare(
        self,
        page: Pages | None,
        prompt: str | Sequence[str] = "markdown",
        *,
        preset: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        grounding: bool | None = None,
        max_new_tokens: int = 1,
        infer: SamplingSettings | Mapping[str, Any] | str | None = None,
    ) -> PackedPages:
        """A page and a prompt as packed inputs, still on the CPU: what `run_prefill` takes.

        Parameters
        ----------
        page : str, Path, bytes, PIL.Image.Image, a sequence of them, or None
            A page; several are one batch, or the pages of one prompt. None is a prompt without an
            image, which has no vision.
        prompt : str or sequence of str, default "markdown"
            What to ask the model: markdown, ocr, free, figure, describe, locate:words, multipage,
            any text. A list has one prompt per row of the batch.
        preset : str, optional
            How the page is cut into views: tiny, small, base, large, gundam, small768, base1024,
            crop; or the model's own. `OcrPhasesError` for a name that the model's family does not
            have.
        base_size : int, optional
            Side of the whole page's view in pixels, if the page is cut into crops; a multiple of
            64, as ``image_size`` is. Sizes are refused where the model's family is unknown.
        image_size : int, optional
            Side of a crop in pixels, or of the only view of a page that is not cut.
        crop_mode : bool, optional
            Cut a large page into crops; the default is what the preset does.
        min_crops : int, optional
            Minimum number of crops of a page that is cut; the default is 2.
        max_crops : int, optional
            Maximum number of crops; the default depends on the family: 9, 6 or 32.
        grounding : bool, optional
            Ask for boxes in a prompt of your own (<|grounding|>); the default is yes. It changes
            neither a named prompt nor a text with its own ``<image>``.
        max_new_tokens : int, default 1
            How many tokens will follow; refused where they do not fit the model's positions.
        infer : mapping or str, optional
            The sampling settings that will be used; a published name decides about several pages.

        Returns
        -------
        PageInputs
            The views of the pages and the token ids, which show themselves in a notebook.

        Raises
        ------
        OcrPhasesError
            For a page, prompt or preset that cannot be used.

        Examples
        --------
        >>> inputs = session.prepare("page.png", preset="base")  # doctest: +SKIP
        >>> state = session.run_prefill(inputs)  # doctest: +SKIP
        """
        settings = RunSettings(
            prompt=prompt,
            preset=preset,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            grounding=grounding,
            max_new_tokens=max_new_tokens,
            infer=infer,
        )
        return Measurement(self.loaded_model, page, settings).packed

    @explain_wrong_calls
    def sweep(
        self,
        page: str | Path,
        *,
        presets: Sequence[str] = ("tiny", "base"),
        strategies: Sequence[str] = ("eager",),
        batches: Sequence[int] = (1,),
        lengths: Sequence[int] = (32,),
        visions: Sequence[str] = ("eager",),
        attentions: Sequence[str | None] = (None,),
        dtypes: Sequence[str | None] = (None,),
        folder: str | Path | None = None,
        prompt: str = "markdown",
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        infer: Mapping[str, Any] | str | None = None,
        threads: int | None = None,
        repeats: int = 3,
        warmup: int = 1,
        seed: int = 0,
        ignore_eos: bool | None = None,
        truth: str | Path | None = None,
        retry_failed: bool = False,
        progress: Callable[[CellOutcome], None] | None = None,
        on_run: Callable[[Cell, int, int], None] | None = None,
    ) -> SweepResult:
        """Measure a page at every combination of the lists.

        Parameters
        ----------
        page : str or Path
            The page's file.
        presets : sequence of str
            Presets to read the page at. The default is ``("tiny", "base")``.
        strategies : sequence of str
            How the language model runs: eager, cuda_graph, compiled. The default is ``("eager",)``.
        batches : sequence of int
            Copies of the page side by side. The default is ``(1,)``.
        lengths : sequence of int
            New tokens of each row. The default is ``(32,)``.
        visions : sequence of str
            How the vision encoders run: eager, cuda_graph, compiled. The default is ``("eager",)``.
        attentions : sequence of str or None
            Attention kernels, as `load` takes them; None is what the model has. The default is
            ``(None,)``.
        dtypes : sequence of str or None
            Dtypes, as `load` takes them; None is what the model has. The default is ``(None,)``.
        folder : str or Path, optional
            Where records are kept. What is there is not measured again; without a folder nothing is
            written.
        prompt : str, default "markdown"
            The prompt of every cell.
        base_size, image_size, crop_mode, min_crops, max_crops : optional
            Sizes of every cell instead of its preset's own, as `run_inference` takes them. A cell
            whose preset they contradict is among the failures.
        infer : mapping or str, optional
            How the next token is chosen in every cell, as `run_inference` takes it. The default is
            greedy.
        threads : int, optional
            Number of CPU threads that torch uses in every cell; the default is torch's own choice.
        repeats : int, default 3
            Number of measured runs of each cell; a time is the median over them.
        warmup : int, default 1
            Number of warm-up runs before the measured ones; they are not recorded.
        seed : int, default 0
            Seed of the random numbers for sampling.
        ignore_eos : bool, optional
            Continue after the end token; the default is yes, except with ``truth``.
        truth : str or Path, optional
            The page's reference text, or a folder that has it by the page's name.
        retry_failed : bool, default False
            Measure again what failed before.
        progress : callable, optional
            Called with each cell's outcome.
        on_run : callable, optional
            Called as ``on_run(cell, runs done, runs in all)`` before, between and after the runs of
            a cell.

        Returns
        -------
        SweepResult
            All records, which show themselves in a notebook.

        Raises
        ------
        OcrPhasesError
            For an empty list, a name that is none, and a folder that holds another sweep. A cell
            that cannot be measured is no error: it is among ``failures``.

        Examples
        --------
        >>> session.sweep("page.png", presets=["base", "gundam"], batches=[1, 2])  # doctest: +SKIP
        """
        plan = Sweep(
            page=page,
            presets=presets,
            strategies=strategies,
            batches=batches,
            lengths=lengths,
            visions=visions,
            attentions=attentions,
            dtypes=dtypes,
            folder=folder,
            prompt=prompt,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            infer=infer,
            threads=threads,
            repeats=repeats,
            warmup=warmup,
            seed=seed,
            ignore_eos=ignore_eos,
            truth=truth,
            retry_failed=retry_failed,
            progress=progress,
            on_run=on_run,
        )
        try:
            return plan.run({"": self._load_changed})
        except Interrupted as interrupted:
            self.last_run = interrupted.run
            raise


#: The session's first name, of when it knew one family.
DeepSeekOCRSession = OCRSession
