//! `conftest.py`: pytest markers for tests that need one kind of machine.

use super::Format;

pub(super) const FORMAT: Format = Format {
    name: "conftest.py",
    about: "pytest markers arm64_cuda, arm64_mps, x86_64, requires_gpu, requires_cuda, requires_mps.",
    write: |_| Ok(include_str!("conftest.py").to_owned()),
};
