//! Identities of the recurrence that the chunk form uses, in float64.

use crate::scan_support::{Random, launch_all, relative};
use ops::kda::KdaOp;
use ops::{Op, Settings, Tensor, TensorMap};

fn normals(random: &mut Random, count: usize) -> Vec<f64> {
    (0..count).map(|_| random.normal()).collect()
}

fn compare(got: &[f64], want: &[f64], what: &str) {
    let error = relative(got, want);
    assert!(error <= 1e-12, "{what} is off by {error:.2e}");
}

/// A call of one head in float32 from float64 values: `q, k, g: [T, K]`, `v: [T, V]`, `beta: [T]`, `state: [K, V]`.
struct Head {
    dims: [usize; 3],
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    beta: Vec<f64>,
    state: Vec<f64>,
}

impl Head {
    fn random(dims: [usize; 3], random: &mut Random) -> Self {
        let [t, k, v] = dims;
        let mut head = Self {
            dims,
            q: normals(random, t * k),
            k: normals(random, t * k),
            v: normals(random, t * v),
            g: (0..t * k).map(|_| -5.0 * random.uniform(0.0, 1.0)).collect(),
            beta: (0..t).map(|_| random.uniform(0.0, 1.0)).collect(),
            state: normals(random, k * v),
        };
        for key in head.k.chunks_exact_mut(k) {
            let norm = key.iter().map(|x| x * x).sum::<f64>().sqrt();
            key.iter_mut().for_each(|x| *x /= norm);
        }
        head.round();
        head
    }

    /// Values become exact in float32, so that the recurrence sees the same numbers.
    fn round(&mut self) {
        for values in
            [&mut self.q, &mut self.k, &mut self.v, &mut self.g, &mut self.beta, &mut self.state]
        {
            values.iter_mut().for_each(|x| *x = f64::from(*x as f32));
        }
    }

    fn tensors(&self) -> TensorMap {
        let [t, k, v] = self.dims;
        let put = |name: &str, shape: &[usize], values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            (name.to_owned(), Tensor::new(shape, values))
        };
        TensorMap::from([
            put("q", &[1, t, 1, k], &self.q),
            put("k", &[1, t, 1, k], &self.k),
            put("v", &[1, t, 1, v], &self.v),
            put("g", &[1, t, 1, k], &self.g),
            put("beta", &[1, t, 1], &self.beta),
            put("initial_state", &[1, 1, k, v], &self.state),
        ])
    }

    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let tensors = self.tensors();
        let outputs = KdaOp.bind(&tensors, &Settings::new()).unwrap().reference();
        (outputs["o"].to_f64(), outputs["final_state"].to_f64())
    }
}

/// `a [m, k] * b [k, n]`.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

fn transpose(a: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns).map(|i| a[i % rows * columns + i / rows]).collect()
}

/// The chunk form of 16 tokens exactly as written down: `(o, state)`.
fn chunk_of_16(head: &Head) -> (Vec<f64>, Vec<f64>) {
    let [t, k, v] = head.dims;
    assert_eq!(t, 16);
    let mut g = head.g.clone(); // G = cumsum(g), [T, K]
    for i in k..t * k {
        g[i] += g[i - k];
    }
    let scaled = |x: &[f64], sign: f64| -> Vec<f64> {
        x.iter().zip(&g).map(|(x, g)| x * (sign * g).exp()).collect()
    };
    let kd = scaled(&head.k, 1.0);
    let ki = scaled(&head.k, -1.0);
    let qd: Vec<f64> = scaled(&head.q, 1.0).iter().map(|x| x * (k as f64).powf(-0.5)).collect();
    let below = |a: Vec<f64>, diagonal: usize| -> Vec<f64> {
        let keep = |i: usize| i % t < i / t + diagonal;
        a.iter().enumerate().map(|(i, x)| if keep(i) { *x } else { 0.0 }).collect()
    };
    let kit = transpose(&ki, t, k);
    let l = below(product(&kd, &kit, [t, k, t]), 0);
    let l: Vec<f64> = l.iter().enumerate().map(|(i, x)| x * head.beta[i / t]).collect();
    // INV = (I - L)(I + L^2)(I + L^4)(I + L^8)
    let plus_identity = |a: &[f64], sign: f64| -> Vec<f64> {
        a.iter().enumerate().map(|(i, x)| sign * x + f64::from(i / t == i % t)).collect()
    };
    let mut inverse = plus_identity(&l, -1.0);
    let mut power = l;
    for _ in 0..3 {
        power = product(&power, &power, [t, t, t]);
        inverse = product(&inverse, &plus_identity(&power, 1.0), [t, t, t]);
    }
    // U = INV beta (V - kd S)
    let read = product(&kd, &head.state, [t, k, v]);
    let write: Vec<f64> = (0..t * v).map(|i| head.beta[i / v] * (head.v[i] - read[i])).collect();
    let u = product(&inverse, &write, [t, t, v]);
    // O = qd S + Tril(qd ki^T) U
    let weights = below(product(&qd, &kit, [t, k, t]), 1);
    let within = product(&weights, &u, [t, t, v]);
    let o = product(&qd, &head.state, [t, k, v]).iter().zip(&within).map(|(a, b)| a + b).collect();
    // S <- e^{G_C} S + (ki e^{G_C})^T U
    let last = &g[(t - 1) * k..];
    let ke: Vec<f64> = ki.iter().enumerate().map(|(i, x)| x * last[i % k].exp()).collect();
    let added = product(&transpose(&ke, t, k), &u, [k, t, v]);
    let state = (0..k * v).map(|i| last[i / v].exp() * head.state[i] + added[i]).collect();
    (o, state)
}

#[test]
fn chunked_formula_equals_the_recurrence() {
    for seed in 0..5 {
        let head = Head::random([16, 12, 7], &mut Random(seed));
        let (o, state) = chunk_of_16(&head);
        let (expected_o, expected_state) = head.reference();
        // e^-G reaches e^80 here, and float64 has digits enough to cancel it again.
        compare(&o, &expected_o, "o");
        compare(&state, &expected_state, "state");
    }
}

#[test]
fn segments_compose_as_affine_maps() {
    // With v = 0 and S = I the recurrence yields A; with S = 0 it yields B.
    let [t, k, v] = [20, 6, 6];
    let whole = Head::random([t, k, v], &mut Random(9));
    let segment = |range: std::ops::Range<usize>| {
        let part = |x: &[f64], width: usize| x[range.start * width..range.end * width].to_vec();
        let mut head = Head {
            dims: [range.len(), k, v],
            q: part(&whole.q, k),
            k: part(&whole.k, k),
            v: vec![0.0; range.len() * v],
            g: part(&whole.g, k),
            beta: part(&whole.beta, 1),
            state: (0..k * v).map(|i| f64::from(i / v == i % v)).collect(),
        };
        let a = head.reference().1;
        (head.v, head.state) = (part(&whole.v, v), vec![0.0; k * v]);
        (a, head.reference().1)
    };
    let ((a1, b1), (a2, b2)) = (segment(0..9), segment(9..20));
    let a = product(&a2, &a1, [k, k, k]);
    let b: Vec<f64> = product(&a2, &b1, [k, k, v]).iter().zip(&b2).map(|(x, y)| x + y).collect();
    let state: Vec<f64> =
        product(&a, &whole.state, [k, k, v]).iter().zip(&b).map(|(x, y)| x + y).collect();
    compare(&state, &whole.reference().1, "composed segments");
}

/// 16 tokens in two channels: channel 0 decays for 8 tokens, then channel 1 for 8, at 4.99 each, so that both lose
/// 39.9 in all. The state begins in channel 1, and one write at the turn, with a key 2.35 degrees off that channel's
/// normal, moves `sin * cos` = 4.1 % of it into channel 0.
fn moving_state() -> Head {
    let angle = 2.352_f64.to_radians();
    let mut head = Head {
        dims: [16, 2, 3],
        q: vec![1.0; 32],
        k: [angle.cos(), angle.sin()].repeat(16),
        v: vec![0.0; 48],
        g: (0..32).map(|i| if (i / 2 < 8) == (i % 2 == 0) { -4.99 } else { 0.0 }).collect(),
        beta: (0..16).map(|t| f64::from(t == 7)).collect(),
        state: [[0.0; 3], [1.0, -2.0, 0.5]].concat(),
    };
    head.round();
    head
}

#[test]
fn the_state_is_not_dropped_on_a_false_bound() {
    let head = moving_state();
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let sum = |channel: usize| (0..16).map(|t| head.g[2 * t + channel]).sum::<f64>();
    let claimed = sum(0).max(sum(1)) / std::f64::consts::LN_2;
    assert!((claimed + 57.6).abs() < 0.05, "max_d sum_t g_td claims 2^{claimed:.2}");
    assert!(head.g.iter().all(|g| *g >= -5.0));
    let (_, state) = head.reference();
    let kept = norm(&state) / norm(&head.state);
    assert!((kept - 0.041).abs() < 5e-4, "the state keeps {kept:.4} of its norm");
    // The sound bound: sum_t max_d g_td is 0 here.
    let sound: f64 = head.g.chunks_exact(2).map(|g| g[0].max(g[1])).sum();
    assert_eq!(sound, 0.0);

    let tensors = head.tensors();
    for (variant, outputs) in launch_all(&KdaOp, &tensors, &Settings::new()) {
        let error = relative(&outputs["final_state"].to_f64(), &state);
        assert!(error < 1e-5, "{variant} lost the state: relative error {error:.1e}");
    }
}
