//! `firstlight._fast`: the same calls as a CPython extension module. A C call costs a tenth of one through `ctypes`, and torch's
//! tensors are read through DLPack's C exchange API (torch 2.10 and later) instead of Python attributes.
//!
//! The interpreter's functions are found by `dlsym` when the module is imported. The library does not link libpython, so other
//! programs can load it too.
#![allow(unsafe_code)] // CPython's and DLPack's interfaces.

use crate::abi::{RANK, RawPlace, RawTensor};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

type Object = *mut c_void;

/// CPython's functions. All are in the limited API, `PyObject_Vectorcall` since 3.12.
struct Python {
    module_create: unsafe extern "C" fn(*mut Definition, c_int) -> Object,
    dict_next: unsafe extern "C" fn(Object, *mut isize, *mut Object, *mut Object) -> c_int,
    dict_get: unsafe extern "C" fn(Object, Object) -> Object,
    contains: unsafe extern "C" fn(Object, Object) -> c_int,
    tuple_get: unsafe extern "C" fn(Object, isize) -> Object,
    long_of: unsafe extern "C" fn(Object) -> i64,
    long: unsafe extern "C" fn(i64) -> Object,
    capsule: unsafe extern "C" fn(Object, *const c_char) -> *mut c_void,
    clear_error: unsafe extern "C" fn(),
    vectorcall: unsafe extern "C" fn(Object, *const Object, usize, Object) -> Object,
    release: unsafe extern "C" fn(Object),
    none: Object,
    no: Object,
}

// SAFETY: the fields are functions, and objects that live as long as the interpreter.
unsafe impl Send for Python {}
// SAFETY: as above.
unsafe impl Sync for Python {}

/// The Python objects of torch that [`api`] registered.
struct Torch {
    /// Addresses of the types `Tensor` and `Parameter`. Other subclasses are not read, because they may override operations.
    plain: [usize; 2],
    /// The function `Tensor.is_neg`.
    is_negated: usize,
}

static TORCH: OnceLock<Torch> = OnceLock::new();

static PYTHON: OnceLock<Option<Python>> = OnceLock::new();

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Python {
    /// Looks the functions up in this process; `None` if one is missing.
    fn find() -> Option<Self> {
        // RTLD_DEFAULT
        let everywhere =
            if cfg!(target_os = "macos") { -2isize as *mut c_void } else { null_mut() };
        /// # Safety
        /// `F` is the type of the function of this name.
        unsafe fn function<F: Copy>(everywhere: *mut c_void, name: &CStr) -> Option<F> {
            // SAFETY: `name` is a C string.
            let found = unsafe { dlsym(everywhere, name.as_ptr()) };
            // SAFETY: guaranteed by the caller; a function pointer has the size of a pointer.
            (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
        }
        // SAFETY: CPython's documentation has these signatures.
        unsafe {
            Some(Self {
                module_create: function(everywhere, c"PyModule_Create2")?,
                dict_next: function(everywhere, c"PyDict_Next")?,
                dict_get: function(everywhere, c"PyDict_GetItem")?,
                contains: function(everywhere, c"PySequence_Contains")?,
                tuple_get: function(everywhere, c"PyTuple_GetItem")?,
                long_of: function(everywhere, c"PyLong_AsLongLong")?,
                long: function(everywhere, c"PyLong_FromLongLong")?,
                capsule: function(everywhere, c"PyCapsule_GetPointer")?,
                clear_error: function(everywhere, c"PyErr_Clear")?,
                vectorcall: function(everywhere, c"PyObject_Vectorcall")?,
                release: function(everywhere, c"Py_DecRef")?,
                none: function(everywhere, c"_Py_NoneStruct")?,
                no: function(everywhere, c"_Py_FalseStruct")?,
            })
        }
    }

    fn here() -> Option<&'static Self> {
        PYTHON.get_or_init(Self::find).as_ref()
    }

    /// The value of an integer; -1 if the object is not an integer.
    unsafe fn number(&self, object: Object) -> i64 {
        // SAFETY: the caller passes an object.
        let value = unsafe { (self.long_of)(object) };
        if value == -1 {
            // SAFETY: no arguments.
            unsafe { (self.clear_error)() };
        }
        value
    }
}

#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(Object, *const Object, isize) -> Object>,
    flags: c_int,
    doc: *const c_char,
}

/// `PyModuleDef`.
#[repr(C)]
struct Definition {
    head: [usize; 2],
    init: usize,
    index: isize,
    copy: usize,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut Method,
    rest: [usize; 4],
}

const FASTCALL: c_int = 0x80;
/// `PYTHON_ABI_VERSION` of the limited API.
const LIMITED: c_int = 3;

/// The entry point that CPython calls when it imports the module `_fast` from this library.
///
/// # Safety
/// Called by CPython.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PyInit__fast() -> Object {
    let Some(python) = Python::here() else { return null_mut() };
    let method = |name: &'static CStr, function: unsafe extern "C" fn(_, _, _) -> _| Method {
        name: name.as_ptr(),
        function: Some(function),
        flags: FASTCALL,
        doc: null(),
    };
    let methods = Box::new([
        method(c"api", api),
        method(c"launch", launch),
        Method { name: null(), function: None, flags: 0, doc: null() },
    ]);
    let definition = Box::new(Definition {
        head: [1, 0],
        init: 0,
        index: 0,
        copy: 0,
        name: c"_fast".as_ptr(),
        doc: null(),
        size: -1,
        methods: Box::leak(methods).as_mut_ptr(),
        rest: [0; 4],
    });
    // SAFETY: the definition lives as long as the process.
    unsafe { (python.module_create)(Box::leak(definition), LIMITED) }
}

/// `DLTensor` of DLPack 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    sizes: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The leading fields of `DLPackExchangeAPI`.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    earlier: *mut c_void,
    allocator: *mut c_void,
    managed_from: *mut c_void,
    managed_to: *mut c_void,
    tensor_of: Option<unsafe extern "C" fn(Object, *mut DlTensor) -> c_int>,
}

/// `api(capsule, Tensor, Parameter, is_neg)`: registers torch's types and returns the address of the exchange API in
/// `torch.Tensor.__dlpack_c_exchange_api__`, or 0 if its version is unsupported. Only tensors of these two types are read, and `is_neg`
/// detects lazily negated ones.
unsafe extern "C" fn api(_: Object, arguments: *const Object, count: isize) -> Object {
    let Some(python) = Python::here() else { return null_mut() };
    let found = if count == 4 {
        // SAFETY: there are four arguments.
        let [capsule, tensor, parameter, is_neg] = unsafe { *arguments.cast::<[Object; 4]>() };
        TORCH.get_or_init(|| Torch {
            plain: [tensor.addr(), parameter.addr()],
            is_negated: is_neg.expose_provenance(),
        });
        // SAFETY: an object and a C string.
        unsafe { (python.capsule)(capsule, c"dlpack_exchange_api".as_ptr()) }
    } else {
        null_mut()
    };
    if found.is_null() {
        // SAFETY: no arguments.
        unsafe { (python.clear_error)() };
    }
    // SAFETY: a capsule of this name has a pointer to this struct.
    let known = unsafe { found.cast::<Exchange>().as_ref() }
        .is_some_and(|exchange| exchange.major == 1 && exchange.tensor_of.is_some());
    // SAFETY: no objects.
    unsafe { (python.long)(if known { found.expose_provenance() as i64 } else { 0 }) }
}

/// The type code of [`RawTensor::dtype`]; 0 for unsupported types.
fn dtype(tensor: &DlTensor) -> i32 {
    match (tensor.code, tensor.bits, tensor.lanes) {
        (2, 64, 1) => 1,
        (2, 32, 1) => 2,
        (4, 16, 1) => 3,
        (2, 16, 1) => 4,
        (0, 32, 1) => 5,
        (0, 8, 1) => 7,
        (1, 8, 1) => 8,
        // `kDLFloat8_e4m3fn`
        (10, 8, 1) => 6,
        _ => 0,
    }
}

/// The result of [`launch`] if an argument is not a plain tensor. Nothing has run.
const NOT_PLAIN: i64 = -2;

/// `launch(context, handle, inputs, outputs, insert, bounds, device)`: writes a record for each tensor of the dictionaries `inputs` and
/// `outputs`, calls [`crate::fl_call`], and returns its result, or [`NOT_PLAIN`] if the caller has to use the slow path.
///
/// - `context`: a tuple of the address of the exchange API, the address of the records, the index of each input by name, the index
///   of each output by name, the number of inputs, the number of tensors, and the address of the [`RawPlace`].
/// - `inputs`, `outputs`: tensors by name; `None` is absent.
/// - `insert`: a tuple of names, or `None`. These tensors get a dimension of size 1 before their last.
/// - `bounds`: `None`, or pairs of [`RawTensor::bound`] and [`RawTensor::total`] by name.
unsafe extern "C" fn launch(_: Object, arguments: *const Object, count: isize) -> Object {
    let Some(python) = Python::here() else { return null_mut() };
    // SAFETY: CPython passes `count` objects that live during the call.
    let code = (count == 7)
        .then(|| unsafe { write_and_call(python, &*arguments.cast()) })
        .flatten()
        .unwrap_or(NOT_PLAIN);
    // SAFETY: no objects.
    unsafe { (python.long)(code) }
}

/// # Safety
/// The objects have the types that [`launch`] documents.
unsafe fn write_and_call(python: &Python, arguments: &[Object; 7]) -> Option<i64> {
    let [context, handle, inputs, outputs, insert, bounds, device] = *arguments;
    // SAFETY: guaranteed by the caller, here and below.
    let item = |at| unsafe { (python.tuple_get)(context, at) };
    let address = |at| unsafe { python.number(item(at)) } as usize;
    let read = unsafe { std::ptr::with_exposed_provenance::<Exchange>(address(0)).as_ref()? };
    let first = std::ptr::with_exposed_provenance_mut::<RawTensor>(address(1));
    let (count_in, count) = (address(4), address(5));
    let records = unsafe { std::slice::from_raw_parts_mut(first, count) };
    let reader = Reader {
        python,
        torch: TORCH.get()?,
        read: read.tensor_of?,
        device: unsafe { python.number(device) },
        insert,
    };
    unsafe { reader.write_all(records, item(2), inputs, bounds)? };
    for record in &mut records[count_in..] {
        record.dtype = 0;
    }
    unsafe { reader.write_all(records, item(3), outputs, python.none)? };
    let place = std::ptr::with_exposed_provenance::<RawPlace>(address(6));
    let handle = unsafe { python.number(handle) };
    Some(i64::from(unsafe { crate::fl_call(handle, first, count, place) }))
}

/// Reads the tensors of one call.
struct Reader<'a> {
    python: &'a Python,
    torch: &'a Torch,
    read: unsafe extern "C" fn(Object, *mut DlTensor) -> c_int,
    /// The GPU's ordinal, or -1 for the CPU.
    device: i64,
    /// A tuple of the names of tensors that get an additional dimension, or `None`.
    insert: Object,
}

impl Reader<'_> {
    /// Writes the records of the tensors of a dictionary; `None` if a tensor is not plain.
    ///
    /// # Safety
    /// `places` and `tensors` are dictionaries; `bounds` is a dictionary or `None`.
    unsafe fn write_all(
        &self,
        records: &mut [RawTensor],
        places: Object,
        tensors: Object,
        bounds: Object,
    ) -> Option<()> {
        let python = self.python;
        let (mut at, mut name, mut tensor) = (0, null_mut(), null_mut());
        // SAFETY: guaranteed by the caller, here and below; the references are borrowed from the dictionaries.
        while unsafe { (python.dict_next)(tensors, &raw mut at, &raw mut name, &raw mut tensor) }
            != 0
        {
            let place = unsafe { (python.dict_get)(places, name) };
            if place.is_null() {
                return None;
            }
            let place = usize::try_from(unsafe { python.number(place) }).ok()?;
            let record = records.get_mut(place)?;
            if tensor == python.none {
                record.dtype = 0;
                continue;
            }
            let found = unsafe { self.tensor(tensor)? };
            let inserted =
                self.insert != python.none && unsafe { (python.contains)(self.insert, name) } == 1;
            write(record, &found, inserted)?;
            (record.bound, record.total, record.host) = (0, 0, 0);
            if bounds != python.none {
                let bound = unsafe { (python.dict_get)(bounds, name) };
                if !bound.is_null() {
                    let of = |at| unsafe { python.number((python.tuple_get)(bound, at)) };
                    (record.bound, record.total) = (of(0), of(1));
                }
            }
        }
        Some(())
    }

    /// The DLPack view of a torch tensor; `None` if it is another object, is on another device or is lazily negated.
    ///
    /// # Safety
    /// `tensor` is a Python object.
    unsafe fn tensor(&self, tensor: Object) -> Option<DlTensor> {
        let python = self.python;
        // SAFETY: an object's second word is its `ob_type`.
        let kind = unsafe { *tensor.cast::<Object>().add(1) };
        if !self.torch.plain.contains(&kind.addr()) {
            return None;
        }
        let is_negated = std::ptr::with_exposed_provenance_mut(self.torch.is_negated);
        // SAFETY: `is_negated` is torch's function, called with one argument; objects here and below are valid.
        let negated = unsafe { (python.vectorcall)(is_negated, &raw const tensor, 1, null_mut()) };
        if negated.is_null() {
            unsafe { (python.clear_error)() };
            return None;
        }
        unsafe { (python.release)(negated) };
        let mut found = std::mem::MaybeUninit::<DlTensor>::uninit();
        if negated != python.no || unsafe { (self.read)(tensor, found.as_mut_ptr()) } != 0 {
            unsafe { (python.clear_error)() };
            return None;
        }
        let found = unsafe { found.assume_init() };
        let here = if found.device_type == 2 { i64::from(found.device) } else { -1 };
        (here == self.device).then_some(found)
    }
}

/// Writes the record of a tensor; `None` if its type is unsupported, it has too many dimensions, or it has no memory.
fn write(record: &mut RawTensor, tensor: &DlTensor, inserted: bool) -> Option<()> {
    let (number, rank) = (dtype(tensor), usize::try_from(tensor.rank).ok()?);
    let lead = if inserted { 2usize.saturating_sub(rank.checked_sub(1)?) } else { 0 };
    let whole = rank + lead + usize::from(inserted);
    if number == 0 || whole > RANK || tensor.data.is_null() || tensor.strides.is_null() {
        return None;
    }
    // SAFETY: DLPack guarantees `rank` sizes and `rank` strides.
    let (sizes, strides) = unsafe {
        (
            std::slice::from_raw_parts(tensor.sizes, rank),
            std::slice::from_raw_parts(tensor.strides, rank),
        )
    };
    record.data = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
    (record.dtype, record.rank) = (number, whole as i32);
    for at in 0..lead {
        (record.sizes[at], record.strides[at]) = (1, 0);
    }
    let before = rank - usize::from(inserted);
    record.sizes[lead..lead + before].copy_from_slice(&sizes[..before]);
    record.strides[lead..lead + before].copy_from_slice(&strides[..before]);
    if inserted {
        let (last, apart) = (sizes[before], strides[before]);
        (record.sizes[whole - 2], record.strides[whole - 2]) = (1, last);
        (record.sizes[whole - 1], record.strides[whole - 1]) = (last, apart);
    }
    Some(())
}
