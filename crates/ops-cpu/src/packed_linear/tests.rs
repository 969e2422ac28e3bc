//! Products against float64 sums.

use super::*;
use crate::gemm::{IntegerFormat, IntegerRows};

/// Values that bfloat16 holds exactly, so that one expectation holds for both storage types.
fn values(seed: u64, count: usize) -> Vec<f32> {
    let value = |i: u64| ((i * 7919 + seed * 104_729) % 251) as f32 / 128.0 - 1.0;
    (0..count as u64).map(|i| bf16::from_f32(value(i)).to_f32()).collect()
}

fn rows_of<'a>(linear: &Linear, x: &'a [f32]) -> impl Fn(usize, &mut [f32]) + Sync + use<'a> {
    let width = linear.inputs();
    move |row, to| to.copy_from_slice(&x[row * width..][..width])
}

fn apply(linear: &Linear, device: &Device, x: &[f32]) -> HostBuffer<f32> {
    let (rows, widths) = (x.len() / linear.inputs(), [linear.outputs()]);
    linear.apply_made(device, rows, rows_of(linear, x), &widths).remove(0)
}

fn check(linear: &Linear, rows: usize, w: &[f32], name: &str) {
    let device = device::Device::processor().with_threads(3);
    let (inputs, outputs) = (linear.inputs(), linear.outputs());
    let x = values(rows as u64 + 5, rows * inputs);
    let y = apply(linear, &device, &x);
    assert_eq!(y.len(), rows * outputs, "{name}");
    // Columns in parts are the same columns.
    let widths = [outputs / 3, outputs - outputs / 3];
    let parts = linear.apply_made(&device, rows, rows_of(linear, &x), &widths);
    for row in 0..rows {
        let of = |at: usize| &parts[at][row * widths[at]..][..widths[at]];
        assert_eq!([of(0), of(1)].concat(), y[row * outputs..][..outputs], "{name} in parts");
    }
    for (at, got) in y.iter().enumerate() {
        let (row, output) = (at / outputs, at % outputs);
        let (x, w) = (&x[row * inputs..][..inputs], &w[output * inputs..][..inputs]);
        let want: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        assert!(
            (f64::from(*got) - want).abs() < 1e-4,
            "{name}: [{row}, {output}] is {got}, wanted {want}"
        );
    }
    if outputs.is_multiple_of(2) {
        let made = linear.apply_gated(&device, rows, rows_of(linear, &x));
        assert_eq!(made.len(), rows * outputs / 2, "{name}");
        for (at, got) in made.iter().enumerate() {
            let (row, column) = (at / (outputs / 2), at % (outputs / 2));
            // Its strip begins with gates, and has as many ups as gates.
            let (before, strip) = (column / GATES * STRIP, column / GATES * GATES);
            let gates = GATES.min(outputs / 2 - strip);
            let y = &y[row * outputs + before..];
            let (g, up) = (f64::from(y[column % GATES]), f64::from(y[gates + column % GATES]));
            let off = (f64::from(*got) - g / (1.0 + (-g).exp()) * up).abs();
            assert!(off < 1e-4, "{name}: gated [{row}, {column}] is off by {off}");
        }
    }
    for row in 0..rows {
        let alone = apply(linear, &device, &x[row * inputs..][..inputs]);
        assert_eq!(*alone, y[row * outputs..][..outputs], "{name}: row {row} alone");
    }
}

/// Reads rows of a matrix.
fn given<T: Copy>(
    w: &[T],
    inputs: usize,
) -> impl Fn(Range<usize>, &mut [T]) -> Result<(), String> + use<'_, T> {
    move |rows, into| {
        into.copy_from_slice(&w[rows.start * inputs..rows.end * inputs]);
        Ok(())
    }
}

/// Checks that weights packed by rows equal those packed from the whole matrix.
fn same(whole: &Linear, by_rows: &Result<Linear, String>) {
    let (by_rows, device) = (by_rows.as_ref().unwrap(), device::Device::processor());
    let x = values(3, 2 * whole.inputs());
    assert_eq!(apply(by_rows, &device, &x), apply(whole, &device, &x));
}

/// Quantized weights and their dequantized values; scales are powers of two, so that bfloat16 holds the values exactly.
struct Whole {
    numbers: Vec<i8>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
    values: Vec<f32>,
}

impl Whole {
    fn new(format: IntegerFormat, [outputs, inputs]: [usize; 2]) -> Self {
        let groups = format.groups(inputs);
        let drawn = |at: usize, size: usize| (at * 7919 + at / 13 * 31) % size;
        const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
        let (size, low) = if format.bits == 4 { (16, -8) } else { (256, -128) };
        let number = |at: usize| match format.float {
            true => E2M1[drawn(at, 16)],
            false => (drawn(at, size) as i32 + low) as i8,
        };
        let numbers = (0..outputs * inputs).map(number);
        let numbers: Vec<i8> = numbers.collect();
        let scale = |at: usize| 2f32.powi(-(drawn(at, 3) as i32) - format.bits as i32);
        let scales: Vec<f32> = (0..outputs * groups).map(scale).collect();
        let zero = |at: usize| if format.zeros { drawn(at + 5, 16) as f32 - 8.0 } else { 0.0 };
        let zeros: Vec<f32> = (0..outputs * groups).map(zero).collect();
        let value = |at: usize| {
            let of = at / inputs * groups + at % inputs / format.group;
            (f32::from(numbers[at]) - zeros[of]) * scales[of]
        };
        let values = (0..outputs * inputs).map(value).collect();
        Self { numbers, scales, zeros, values }
    }

    fn read(&self, inputs: usize, rows: Range<usize>, into: &mut IntegerRows<'_>) {
        let groups = into.scales.len() / rows.len();
        into.values.copy_from_slice(&self.numbers[rows.start * inputs..rows.end * inputs]);
        into.scales.copy_from_slice(&self.scales[rows.start * groups..rows.end * groups]);
        if !into.zeros.is_empty() {
            into.zeros.copy_from_slice(&self.zeros[rows.start * groups..rows.end * groups]);
        }
    }
}

#[test]
fn quantized_products_match_dequantized_weights() {
    let all = usize::MAX;
    let forms = [(4, all, false), (4, 32, false), (4, 64, true), (8, all, false), (8, 96, true)];
    let forms =
        forms.map(|(bits, group, zeros)| IntegerFormat { bits, float: false, group, zeros });
    let float = IntegerFormat { float: true, ..forms[1] };
    for format in forms.into_iter().chain([float]) {
        for [outputs, inputs] in [[2, 1], [64, 32], [65, 33], [130, 200], [34, 1030]] {
            let whole = Whole::new(format, [outputs, inputs]);
            let reversed: Vec<u32> = (0..inputs as u32).rev().collect();
            let backwards: Vec<f32> =
                whole.values.chunks(inputs).flat_map(|row| row.iter().rev().copied()).collect();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
                let linear = |order| {
                    let read = |rows, into: &mut IntegerRows<'_>| {
                        whole.read(inputs, rows, into);
                        Ok::<_, String>(())
                    };
                    Linear::integer_rows(isa, [outputs, inputs], format, order, read).unwrap()
                };
                for rows in [1, 2, 3, 4, 9, 97] {
                    let name = format!("{isa} {format:?} {rows}x{outputs}x{inputs}");
                    check(&linear(None), rows, &whole.values, &name);
                }
                check(&linear(Some(reversed.clone())), 3, &backwards, "reversed");
            }
        }
        let failing = |_: Range<usize>, _: &mut IntegerRows<'_>| Err("row 100 is NaN");
        let made = Linear::integer_rows(Isa::Portable, [130, 8], format, None, failing);
        assert_eq!(made.unwrap_err(), "row 100 is NaN");
    }
}

#[test]
fn rows_that_cannot_be_read_are_an_error() {
    let read = |rows: Range<usize>, _: &mut [f32]| match rows.contains(&100) {
        true => Err("row 100 is NaN"),
        false => Ok(()),
    };
    assert_eq!(Linear::f32_rows(Isa::Portable, [130, 8], read).unwrap_err(), "row 100 is NaN");
    let read = |rows: Range<usize>, _: &mut [bf16]| read(rows, &mut []);
    assert_eq!(Linear::bf16_rows([130, 8], read).unwrap_err(), "row 100 is NaN");
}

#[test]
fn exact_sums_lose_nothing_that_cancels() {
    let device = device::Device::processor();
    let x = [3e7f32, 1.0, -3e7, 0.25].repeat(9);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        // One row of W adds all of x up; the other ones are zero.
        let w: Vec<f32> = (0..36 * 70).map(|at| f32::from(u8::from(at / 36 == 69))).collect();
        let linear = Linear::f32(isa, Mat::new(&w, 70, 36, 36).t());
        assert_ne!(apply(&linear, &device, &x)[69], 11.25, "{isa}: plain sums");
        let linear = linear.exact();
        for rows in [1, 3, 5] {
            let y = apply(&linear, &device, &x.repeat(rows));
            for y in y.chunks_exact(70) {
                assert_eq!((y[69], y[0]), (11.25, 0.0), "{isa}, {rows} rows");
            }
        }
        assert_eq!(device.launches().of("linear.f32_exact").count % 3, 0);
    }
}

#[test]
fn row_results_do_not_depend_on_other_rows() {
    for [outputs, inputs] in [[1, 1], [64, 32], [65, 33], [130, 64], [200, 7]] {
        let w = values(1, outputs * inputs);
        let halves: Vec<bf16> = w.iter().map(|x| bf16::from_f32(*x)).collect();
        for rows in [1, 2, 4, 5, 13, 97] {
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
                let linear = Linear::f32(isa, Mat::new(&w, outputs, inputs, inputs).t());
                check(&linear, rows, &w, &format!("{isa} {rows}x{outputs}x{inputs}"));
                same(&linear, &Linear::f32_rows(isa, [outputs, inputs], given(&w, inputs)));
                check(&linear.exact(), rows, &w, &format!("{isa} exact {rows}"));
            }
            if Isa::Avx512Bf16.is_here() {
                let linear = Linear::bf16(Mat::new(&halves, outputs, inputs, inputs).t());
                check(&linear, rows, &w, &format!("bf16 {rows}x{outputs}x{inputs}"));
                same(&linear, &Linear::bf16_rows([outputs, inputs], given(&halves, inputs)));
            }
        }
    }
}
