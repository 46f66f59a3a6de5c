"""Train OpenMMLab's libraries: MMEngine's components in a run of this package.

MMEngine stays installed for its data structures, file clients, transforms and visualizers; training
is ours. This package is imported only where MMEngine is installed, and only by runs whose
``default_scope`` or component names ask for it.
"""

from ._components import adopt, find
from ._globals import begin

__all__ = ["adopt", "begin", "find"]
