"""Warnings that the field's libraries are known for."""


def pytest_configure(config):
    # webdataset leaves a tar that was not read to its end to Python's collector.
    config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
