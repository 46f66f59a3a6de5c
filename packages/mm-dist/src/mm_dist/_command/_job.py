"""Job settings from a file and options, checked."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_dist._errors import ConfigError
from mm_dist._message import suggest_name

_NAME = r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?"
_COUNT = (r"[1-9]\d*", "a whole number of at least 1")
# A second line would be one of the job script's own.
_LINE = (r"[^\x00-\x1f\x7f]+", "text in one line")
_VALUE = (_LINE[0], "text in one line, and in quotes if it is yes, no, true or false")
_PATH = (r"/[^\x00-\x1f\x7f]*", "an absolute path")
_LABEL = (_NAME, "lower-case letters, digits and '-', at most 50, a letter first")
_TIME = (r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)|([1-9]\d*)", "[D-]HH:MM:SS, or seconds")
# By key, which may be a pattern: what a value has to match, or the rules of a mapping.
RULES: Mapping[str, Any] = {
    "name": _LABEL,
    "nodes": _COUNT,
    "processes_per_node": _COUNT,
    "cpus": _COUNT,
    "gpus": (r"\d+", "a whole number"),
    "memory": (r"[1-9]\d*[MGT]", "a number and M, G or T, as 64G"),
    "time": _TIME,
    "image": (r"[^\s-]\S*", "the name of an image"),
    "requeue": ("True|False", "true or false"),
    "env": {r"[A-Za-z_]\w*": _VALUE},
    "slurm": {r"[a-z][a-z-]*": _LINE},
    "ray": {"address": _LINE, "working_dir": _LINE, "storage_path": _LINE, "max_failures": _COUNT},
    "kubernetes": {"namespace": _LABEL, "workdir": _PATH, "claims": {_NAME: _PATH}},
}


def read_job(file: Path | None, options: Mapping[str, Any], script: str) -> dict[str, Any]:
    """Return the job that a file (YAML) describes; options that are not ``None`` replace it.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used; the message names the key.
    """
    job: dict[str, Any] = _check(f"{file}: ", {} if file is None else _load(file), RULES)
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in _check("--", given, RULES).items():
        job[key] = {**job.get(key, {}), **value} if isinstance(value, dict) else value
    numbers = {key: int(job.get(key, 0)) for key in ("nodes", "processes_per_node", "cpus", "gpus")}
    job |= {"env": {}, "slurm": {}, "ray": {}, "kubernetes": {}, **job, **numbers}
    job["nodes"] = job["nodes"] or 1
    job["processes_per_node"] = job["processes_per_node"] or job["gpus"] or 1
    job["requeue"] = job.get("requeue") == "True"
    if 0 < job["cpus"] < job["processes_per_node"]:
        count = f"{job['processes_per_node']} processes (processes_per_node, by default gpus)"
        raise ConfigError(f"cpus: {job['cpus']} are too few for a node's {count}.")
    time = re.fullmatch(_TIME[0], job.get("time", ""))
    if time is not None:
        days, hours, minutes, seconds, all_seconds = (int(part or 0) for part in time.groups())
        job["time"] = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + all_seconds
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).lstrip("-0123456789")
    job.setdefault("name", stem[:50].rstrip("-") or "job")
    return job


def import_yaml() -> Any:
    """Return PyYAML's module, which is an extra."""
    try:
        import yaml  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("submit needs PyYAML here: pip install 'mm-dist[submit]'.") from error
    return yaml


def _load(file: Path) -> Any:
    yaml = import_yaml()
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _check(path: str, value: Any, rule: Any) -> Any:
    """Return a value as text, and mappings with such values."""
    if isinstance(rule, tuple):
        is_text = isinstance(value, (str, int))
        is_text &= not (rule is _VALUE and isinstance(value, bool))  # yes, on: the text is lost
        if not is_text or re.fullmatch(rule[0], str(value)) is None:
            raise ConfigError(f"{path}: {value!r} cannot be used; it must be {rule[1]}.")
        return str(value)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {value!r} cannot be used; it must be a mapping.")
    prefix = path if path.endswith((": ", "--")) else f"{path}."
    rules = {}
    for key in value:
        found = [each for name, each in rule.items() if re.fullmatch(name, str(key))]
        if not found:
            hint = suggest_name(str(key), rule)
            shown = repr(key).strip("'")  # in one line
            known = ", ".join(name for name in rule if name.isidentifier())
            there = f"there are: {known}.{hint}" if known else "it is no name of this kind."
            raise ConfigError(f"{prefix}{shown}: unknown; {there}")
        rules[key] = found[0]
    return {key: _check(f"{prefix}{key}", value[key], rules[key]) for key in value}
