from harness.library import evaluate as evaluate
from harness.library import evaluate_many as evaluate_many

__version__: str
