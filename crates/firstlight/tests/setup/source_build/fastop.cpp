#include <pybind11/pybind11.h>

static int twice(int value) { return 2 * value; }

PYBIND11_MODULE(fastop, module) { module.def("twice", &twice); }
