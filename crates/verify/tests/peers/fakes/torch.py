"""Makes `import torch` fail, so that peers get memoryviews."""

raise ModuleNotFoundError("there is no torch in these tests", name="torch")
