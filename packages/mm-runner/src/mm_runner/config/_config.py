"""A configuration with the files it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any, TypeVar

from typing_extensions import Self

from mm_runner.errors import ConfigError

from ._config_dict import DELETE, ConfigDict, copy_containers, merge_into, to_primitives
from ._custom_imports import import_modules, importable_folder
from ._installed import find_file
from ._loading import SUFFIXES, Sources, load
from ._places import describe_location, reads_name

AnyError = TypeVar("AnyError", bound=Exception)


class Config(ConfigDict):
    """A configuration: a dict with attribute access that knows its file.

    Args:
        cfg_dict: The configuration.
        filename: File that it was read from.

    Example:
        >>> cfg = Config(dict(model=dict(type="ResNet")))
        >>> cfg.merge_from_dict({"model.depth": 18})
        >>> cfg.model
        {'type': 'ResNet', 'depth': 18}
    """

    _files: list[Path]
    _text: str

    def __init__(
        self, cfg_dict: Mapping[str, Any] | None = None, filename: str | Path | None = None
    ) -> None:
        # Past __setattr__, which would make keys of them.
        files = [] if filename is None else [Path(filename)]
        self.__dict__.update(_files=files, _text="")
        if cfg_dict is not None and not isinstance(cfg_dict, Mapping):
            raise ConfigError(f"cfg: a dict is needed, got {cfg_dict!r}.")
        super().__init__(cfg_dict or {})

    @classmethod
    def fromfile(cls, filename: str | Path, *, import_custom_modules: bool = True) -> Self:
        """Read a configuration from a ``.py``, ``.yaml``, ``.yml`` or ``.json`` file.

        A file of Python is *executed*, so read only those that you trust. Reading YAML and JSON
        runs nothing but the imports of ``custom_imports``; a run then calls what they name.

        The key ``_base_`` (a path or a list of them, relative to the file) names what is inherited:
        dicts are merged key by key, a dict with ``_delete_=True`` replaces the inherited one,
        anything else is replaced. ``"package::path"`` is a file among the configurations of an
        installed package. In Python, :func:`read_base` inherits too. ``{{ fileDirname }}``
        and its like, ``{{ _base_.path }}`` and ``{{$NAME:default}}`` are substituted.

        Args:
            filename: The file, or ``"package::path"``.
            import_custom_modules: Import what ``custom_imports`` names, also beside the file.

        Raises:
            ConfigError: Naming the file and, where it is known, the line.
        """
        file = find_file(filename, Path.cwd())
        return cls._from_sources(load(file.resolve()), file, import_custom_modules)

    @classmethod
    def fromstring(
        cls, cfg_str: str, file_format: str, *, import_custom_modules: bool = True
    ) -> Self:
        """Read a configuration from text, as :meth:`fromfile` does from a file.

        Args:
            cfg_str: The text; of Python it is *executed*. What it inherits is relative to the
                current folder.
            file_format: ``".py"``, ``".yaml"``, ``".yml"`` or ``".json"``.
            import_custom_modules: As in :meth:`fromfile`.

        Raises:
            ConfigError: Naming the line where it is known.

        Example:
            >>> Config.fromstring("lr: 1e-3", ".yaml")
            {'lr': 0.001}
        """
        if file_format not in SUFFIXES:
            raise ConfigError(
                f"file_format: {file_format!r} was given; there are {', '.join(SUFFIXES)}."
            )
        sources = load(Path.cwd() / f"<text>{file_format}", text=cfg_str)
        return cls._from_sources(sources, None, import_custom_modules)

    @classmethod
    def _from_sources(cls, sources: Sources, file: Path | None, imports: bool) -> Self:  # noqa: FBT001
        cfg = cls(sources.content)
        files = [file, *sources.files[1:]] if file else []
        cfg.__dict__.update(_files=files, _text=sources.text)
        if imports and "custom_imports" in cfg:
            try:
                with importable_folder(file.parent if file else Path.cwd()):
                    import_modules(cfg["custom_imports"])
            except ConfigError as error:
                raise cfg.located(error) from error
        return cfg

    @property
    def filename(self) -> str | None:
        """Absolute path of the file."""
        return str(self._files[0]) if self._files else None

    @property
    def text(self) -> str:
        """Text of the file."""
        return self._text

    @property
    def pretty_text(self) -> str:
        """The resolved configuration as Python, which :meth:`fromfile` reads again."""
        for key in self:
            if not str(key).isidentifier():
                raise ConfigError(f"{key}: not a name in Python; write YAML or JSON instead.")
        return "".join(
            f"{key} = {pformat(to_primitives(value, tuples=True), width=96, sort_dicts=False)}\n"
            for key, value in self.items()
        )

    def merge_from_dict(self, options: Mapping[str, Any]) -> None:
        """Change single values.

        Args:
            options: Values by path, as ``{"optim_wrapper.optimizer.lr": 0.1}``; the items of a list
                are numbered.

        Raises:
            ConfigError: If a path leads through a plain value, or past the end of a list.
        """
        merged = copy_containers(self)
        # What empties a dict comes before what is put in instead.
        for path in sorted(options, key=lambda path: not path.endswith(f".{DELETE}")):
            change = options[path]
            for key in reversed(path.split(".")):
                change = {key: change}
            merge_into(merged, change, is_strict=True)
        self.clear()
        self.update(merged)

    def dump(self, file: str | Path | None = None) -> str:
        """Return the configuration as text, and write it to ``file`` if that is given.

        The suffix chooses between Python (the default), YAML and JSON.

        Raises:
            ConfigError: If the suffix is another one.
        """
        suffix = ".py" if file is None else Path(file).suffix
        if suffix == ".py":
            text = self.pretty_text
        elif suffix in {".yaml", ".yml"}:
            import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

            text = yaml.safe_dump(to_primitives(self), sort_keys=False, allow_unicode=True)
        elif suffix == ".json":
            text = json.dumps(to_primitives(self), indent=2, ensure_ascii=False) + "\n"
        else:
            raise ConfigError(f"{file}: a configuration is written as .py, .yaml, .yml or .json.")
        if file is not None:
            Path(file).write_text(text, encoding="utf-8")
        return text

    def located(self, error: AnyError) -> AnyError:
        """Return ``error`` with the file and line of the key that its message begins with."""
        place = describe_location(self._files, str(error))
        return type(error)(f"{place}: {error}") if place else error

    def reads(self, key: str) -> bool:
        """Return whether a file uses a top-level key as a variable."""
        return any(reads_name(file, key) for file in self._files)
