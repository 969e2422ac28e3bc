"""A package with one extension, built like flash-attn, causal-conv1d and mamba-ssm: it uses a prebuilt wheel of the release
page if there is one, unless FASTOP_FORCE_BUILD is set."""

import os
import subprocess
import urllib.error
import urllib.request

import pybind11
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FORCE_BUILD = os.getenv("FASTOP_FORCE_BUILD", "FALSE") == "TRUE"
SKIP_BUILD = os.getenv("FASTOP_SKIP_BUILD", "FALSE") == "TRUE"


class CachedWheel(bdist_wheel):
    def run(self):
        if FORCE_BUILD:
            return super().run()
        name = "fastop-1.0-{}-{}-{}.whl".format(*self.get_tag())
        url = os.environ["FASTOP_WHEELS"] + "/" + name
        print("Guessing wheel URL: ", url)
        try:
            urllib.request.urlretrieve(url, name)
            os.makedirs(self.dist_dir, exist_ok=True)
            os.rename(name, os.path.join(self.dist_dir, name))
        except urllib.error.HTTPError:
            print("Precompiled wheel not found. Building from source...")
            super().run()


class Build(build_ext):
    def run(self):
        super().run()
        if os.getenv("FASTOP_STRIP"):
            for output in self.get_outputs():
                subprocess.run(["strip", output], check=True)


extension = Extension(
    "fastop",
    ["fastop.cpp"],
    include_dirs=[pybind11.get_include()],
    extra_compile_args=["-O0"],
    language="c++",
)
setup(
    name="fastop",
    version="1.0",
    py_modules=[],
    ext_modules=[] if SKIP_BUILD else [extension],
    cmdclass={"bdist_wheel": CachedWheel, "build_ext": Build},
)
