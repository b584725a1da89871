"""The HTTP API of node 0: SGLang's and OpenAI's endpoints, with the status codes of each state."""

from __future__ import annotations

import json
import select
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import answers
from .answers import BadRequest, Question
from .engine import Abandoned, Engine, Status
from .model import Model
from .settings import Settings
from .web import Handler

Routes = Mapping[str, Callable[[], None] | None]
"""Path -> its handler; None if this version has no such path."""


class QueueFull(Exception):
    """As many requests wait as may."""


class LeaderHandler(Handler):
    """Node 0. `settings`, `model` and `engine` are set on a subclass by leader_handler."""

    settings: Settings
    model: Model
    engine: Engine

    def do_GET(self) -> None:  # noqa: N802 - http.server's naming
        self._route(self._gets(), self._posts())

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:  # noqa: N802
        self._route(self._posts(), self._gets())

    do_PUT = do_POST  # noqa: N815

    def _gets(self) -> Routes:
        return {
            "/": lambda: self.answer(200, "SGLang is running (l40s-deploy stand-in, no model)", "text/plain"),
            "/health": self._health,
            "/health_generate": self._health_generate,
            "/ping": self._flag if self._new else lambda: self.answer(200),
            "/v1/models": self._models,
            "/flush_cache": self._flush if self._new else None,
            "/ready": self._flag if self._new else None,
            "/v1/loads": self._loads if self._new else None,
            "/server_info": self._server_info if self._new else None,
            "/model_info": self._model_info if self._new else None,
            "/get_server_info": self._server_info,
            "/get_model_info": self._model_info,
            "/metrics": self._metrics if self.settings.metrics else None,
        }

    def _posts(self) -> Routes:
        return {
            "/generate": self._generate,
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/flush_cache": self._flush,
        }

    @property
    def _new(self) -> bool:
        return self.settings.version.health_generates

    def _route(self, routes: Routes, others: Routes) -> None:
        """Answer with this method's routes; a path that only the other method has gets the corresponding error."""
        path = self.path_only()
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.settings.api_key
        if (
            key
            and not path.startswith(self.settings.version.open_paths)
            and self.headers.get("Authorization") != f"Bearer {key}"
        ):
            self.answer(401, {"error": "Unauthorized"})
            return
        route = routes.get(path)
        if route is None:
            elsewhere = others.get(path) is not None
            self.answer(*(405, {"detail": "Method Not Allowed"}) if elsewhere else (404, {"detail": "Not Found"}))
            return
        try:
            route()
        except BadRequest as error:
            problem = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            self.answer(400, problem)
        except QueueFull:
            message = "The request queue is full."
            self.answer(503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503})
        except (Abandoned, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # -- health -----------------------------------------------------------------------------------------------

    def _health(self) -> None:
        if self._new:
            self._health_generate()
        else:
            self.answer(200)

    def _health_generate(self) -> None:
        if self._new and self.engine.draining:
            self.log.line("Health check request received during shutdown. Returning 503.")
            self.answer(503)
            return
        if self._new and self.engine.status is Status.STARTING:
            self.answer(503)
            return
        asked = Question(f"HEALTH_CHECK_{uuid.uuid4().hex}", 1, ("",), "length")
        began = time.strftime("%H:%M:%S")
        if self.engine.probe(asked, self.settings.health_wait, min(1.0, self.settings.speed)):
            if self._new:
                self.engine.status = Status.UP
            self.answer(200)
            return
        last = time.strftime("%H:%M:%S", time.localtime(self.engine.last_token_at))
        self.log.line(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{self.settings.health_timeout:g} seconds. tic start time: {began}. last_heartbeat time: {last}"
        )
        if self._new:
            self.engine.status = Status.UNHEALTHY
        self.answer(503)

    def _flag(self) -> None:
        self.answer(200 if self.engine.status is Status.UP and not self.engine.draining else 503)

    # -- generation -------------------------------------------------------------------------------------------

    def _completions(self) -> None:
        asked = self._json()
        self._openai(asked, self._questions(answers.prompts_of(asked.get("prompt")), asked, count=16), chat=False)

    def _chat(self) -> None:
        asked = self._json()
        prompt = answers.chat_prompt(asked.get("messages"))
        self._openai(asked, self._questions([prompt], asked, count=1024), chat=True)

    def _openai(self, asked: dict[str, Any], questions: list[Question], *, chat: bool) -> None:
        name = str(asked.get("model") or self.settings.served_name)
        if not asked.get("stream"):
            self._finish(questions)
            self.answer(200, answers.whole(name, questions, chat=chat, new=self._new))
            return
        first = questions[0]
        options = asked.get("stream_options")
        wants_usage = isinstance(options, dict) and options.get("include_usage")
        self._events(
            (answers.chunk(name, first, *span, chat=chat) for span in self._spans(first)),
            [answers.usage_chunk(name, first, chat=chat, new=self._new)] if wants_usage else [],
        )

    def _generate(self) -> None:
        asked = self._json()
        prompts = answers.prompts_of(asked.get("text", asked.get("input_ids")))
        sampling = asked.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise BadRequest("sampling_params must be an object")
        limit = {"max_tokens": sampling.get("max_new_tokens"), "ignore_eos": sampling.get("ignore_eos")}
        questions = self._questions(prompts, {**limit, "rid": asked.get("rid")}, count=128)
        if asked.get("stream"):
            first = questions[0]
            logprobs = bool(asked.get("return_logprob"))
            self._events((answers.generated(first, last, logprobs=logprobs) for _, last in self._spans(first)), [])
            return
        self._finish(questions)
        made = [answers.generated(one, logprobs=bool(asked.get("return_logprob"))) for one in questions]
        self.answer(
            200, made if isinstance(asked.get("text", asked.get("input_ids")), list) and len(made) > 1 else made[0]
        )

    def _questions(self, prompts: list[Any], asked: dict[str, Any], count: int) -> list[Question]:
        if self._full():
            raise QueueFull
        limit = answers.count_of(asked.get("max_completion_tokens", asked.get("max_tokens")), count)
        copies = answers.count_of(asked.get("n"), 1) or 1
        given = asked.get("max_completion_tokens", asked.get("max_tokens")) is not None
        for prompt in prompts:
            self._check_length(answers.prompt_tokens(prompt), limit if given else 0)
        rid = asked.get("rid") if len(prompts) * copies == 1 and isinstance(asked.get("rid"), str) else None
        beside, model = len(self.engine.in_flight), self.settings.served_name
        return [
            answers.question(prompt, limit, bool(asked.get("ignore_eos")), rid, beside=beside, model=model)
            for prompt in prompts
            for _ in range(min(copies, 128))
        ]

    def _full(self) -> bool:
        """The real one counts those that wait alone, so that a burst on a free engine can be refused too."""
        most = self.settings.max_queued
        return most is not None and self._load()[1] >= most

    def _load(self) -> tuple[int, int]:
        """Requests that run, and that wait."""
        all_of_them, most = len(self.engine.in_flight), self.settings.max_running
        running = all_of_them if most is None else min(all_of_them, most)
        return running, all_of_them - running

    def _check_length(self, tokens: int, wanted: int) -> None:
        """Requests that tokenizer_manager.py refuses: a prompt, or prompt and answer, longer than the context."""
        context = self.model.context
        if tokens >= context:
            raise BadRequest(
                f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
            )
        if tokens + wanted > context:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {tokens + wanted} tokens: {tokens} tokens from the input messages and {wanted} tokens for "
                "the completion. Please reduce the number of tokens in the input messages or the completion to fit "
                "within the limit."
            )

    def _finish(self, questions: list[Question]) -> None:
        """Make all generations of a request to the end, together."""
        running = [self.engine.stream(asked, abandoned=self._client_gone) for asked in questions]
        try:
            for one in running:
                for _ in one:
                    pass
        finally:
            for asked in questions:
                self.engine.forget(asked.rid)

    def _spans(self, asked: Question) -> Iterator[tuple[int, int]]:
        """(first, last) of the tokens in each step of a stream."""
        first = 0
        try:
            for last in self.engine.stream(asked, abandoned=self._client_gone):
                yield first, last
                first = last
        finally:
            self.engine.forget(asked.rid)

    def _events(self, chunks: Iterator[dict[str, Any]], last: list[dict[str, Any]]) -> None:
        """Server-sent events, ended by [DONE]."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self._event(json.dumps(chunk))
        for chunk in last:
            self._event(json.dumps(chunk))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _client_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _json(self) -> dict[str, Any]:
        try:
            asked = json.loads(self._body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        if not isinstance(asked, dict):
            raise BadRequest("the body must be a JSON object")
        return asked

    # -- facts ------------------------------------------------------------------------------------------------

    def _models(self) -> None:
        card = {
            "id": self.settings.served_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": answers.OWNER,
            "root": self.settings.served_name,
        }
        if self._new:
            card |= {"parent": None, "max_model_len": self.model.context}
        self.answer(200, {"object": "list", "data": [card]})

    def _model_info(self) -> None:
        facts: dict[str, Any] = {
            "model_path": self.settings.model_path,
            "tokenizer_path": self.settings.model_path,
            "is_generation": True,
            "stand_in": answers.NOTICE,
        }
        if self._new:
            facts |= {
                "served_model_name": self.settings.served_name,
                "model_type": self.model.config.get("model_type"),
                "architectures": self.model.config.get("architectures"),
            }
        self.answer(200, facts)

    def _server_info(self) -> None:
        facts = {
            **self.settings.given,
            "tp_size": self.settings.tp_size,
            "pp_size": self.settings.pp_size,
            "nnodes": self.settings.nnodes,
            "node_rank": self.settings.node_rank,
            "served_model_name": self.settings.served_name,
            "status": "ready",
            "max_total_num_tokens": self.engine.pool,
            "version": self.settings.version.name,
            "internal_states": [{"last_gen_throughput": 0.0}],
            "stand_in": answers.NOTICE,
        }
        facts.pop("api_key", None)
        facts.pop("admin_api_key", None)
        self.answer(200, facts)

    def _loads(self) -> None:
        running, waiting = self._load()
        load = {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": 0,
            "max_total_num_tokens": self.engine.pool,
            "token_usage": 0.0,
            "gen_throughput": 0.0,
        }
        self.answer(
            200,
            {
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
                "version": self.settings.version.name,
                "accelerator": answers.OWNER,
                "num_accelerators": self.settings.world,
                "loads": [load],
            },
        )

    def _flush(self) -> None:
        if self._new and self.engine.in_flight:
            self.answer(400, "Cache not flushed: requests are running.\n", "text/plain")
            return
        self.answer(200, "Cache flushed.\n", "text/plain")

    def _metrics(self) -> None:
        label = json.dumps(self.settings.served_name)
        running, waiting = self._load()
        figures = (
            ("num_running_reqs", "gauge", running),
            ("num_queue_reqs", "gauge", waiting),
            ("num_used_tokens", "gauge", 0),
            ("token_usage", "gauge", 0.0),
            ("gen_throughput", "gauge", 0.0),
            ("max_total_num_tokens", "gauge", self.engine.pool),
            ("prompt_tokens_total", "counter", self.engine.prompted),
            ("generation_tokens_total", "counter", self.engine.generated),
            ("num_requests_total", "counter", self.engine.finished),
        )
        text = "".join(
            f"# HELP sglang:{name} {answers.OWNER}, no model loaded\n# TYPE sglang:{name} {kind}\n"
            f"sglang:{name}{{model_name={label}}} {value}\n"
            for name, kind, value in figures
        )
        self.answer(200, text, "text/plain; version=0.0.4")


def leader_handler(settings: Settings, model: Model, engine: Engine) -> type[LeaderHandler]:
    """A handler class for this engine."""
    return type("BoundHandler", (LeaderHandler,), {"settings": settings, "model": model, "engine": engine})
