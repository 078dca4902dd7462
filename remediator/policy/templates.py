"""Objects and endpoints that steps name: templates of Jobs, of any object, and webhooks.

They stand in RemediatorConfig, so that a policy can only use what the cluster's people put
there. A template is plain YAML of one object. A few words in its text values are filled in;
that is all there is of a language, and nothing of it can be reached from a node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from pydantic import Field, model_validator

from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration


WORDS: Final = ("node", "uid", "session", "attempt", "policy")
"""What may be written in braces in a text value of a template."""
_NOT_OURS: Final = ("ownerReferences", "finalizers", "uid", "resourceVersion")
"""Keys of an object's metadata that a step, or the server, sets."""
_WORD: Final = re.compile(r"\{(" + "|".join(WORDS) + r")\}")


class TemplateError(ValueError):
    """A template that cannot be used. ``str()`` says why."""


class Template(Model):
    """The template of an object that a `job` or `create` step makes."""

    file: str = Field(
        min_length=1,
        examples=["/etc/gpu-remediator/jobs/gpu-reset.yaml"],
        description="YAML of one object; read each time. Relative: to this file's folder.",
    )


class ReadTemplate(NamedTuple):
    """What became of reading a template's file: its object, or where and why there is none."""

    file: str
    data: dict[str, Any] | None = None
    trouble: str = ""
    elsewhere: bool = False
    """Whether it has an absolute name, and may be on another machine."""


class Endpoint(Model):
    """Where a `webhook` step POSTs to. Secrets come from files, never from this one."""

    model_config = schema_keywords(oneOf=[{"required": ["url"]}, {"required": ["urlFile"]}])

    url: str | None = Field(
        default=None, pattern=r"^https?://", description="Where to. It, or `urlFile`."
    )
    url_file: str | None = Field(default=None, description="File that holds the URL.")
    secret_file: str = Field(
        min_length=1, description="File that holds the secret of the HMAC SHA-256 signature."
    )
    timeout: Duration = Field(default=10.0, description="Deadline of one attempt.")

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("an endpoint needs exactly one of: url, urlFile")
        return self


def fill(value: Any, words: Mapping[str, str]) -> Any:
    """Return a template with its words filled in: in text values only, never in keys."""
    if isinstance(value, str):
        return _WORD.sub(lambda found: words[found[1]], value)
    if isinstance(value, dict):
        return {key: fill(one, words) for key, one in value.items()}
    if isinstance(value, list):
        return [fill(one, words) for one in value]
    return value


def check_template(data: Any) -> dict[str, Any]:
    """Return the object that a template's text holds.

    Raises:
        TemplateError: it is none that could be created.
    """
    if not isinstance(data, dict):
        raise TemplateError("it must be one object, with apiVersion and kind")
    for key in ("apiVersion", "kind"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise TemplateError(f"it has no {key}")
    metadata = data.get("metadata", {})
    if not isinstance(metadata, dict):
        raise TemplateError("its metadata is no mapping")
    taken = [f"metadata.{key}" for key in _NOT_OURS if key in metadata]
    if taken:
        them = "it" if len(taken) == 1 else "them"
        raise TemplateError(f"{', '.join(taken)} cannot be set by a template: leave {them} out")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key, {}), dict):
            raise TemplateError(f"metadata.{key} is no mapping")
    return data
