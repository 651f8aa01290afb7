"""The tag of the wheel: with the library (build_wheel.sh) it is for one platform and any Python 3."""

import pathlib

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HAS_LIBRARY = (pathlib.Path(__file__).parent / "automap_hlo/lib/libautomap.so").exists()


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return HAS_LIBRARY


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if HAS_LIBRARY else (python, abi, platform)


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
