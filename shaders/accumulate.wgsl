// Four neighbouring sums, with a share of their gradients added; `rate` is the share.
fn moved(total: vec4<f32>, gradient: vec4<f32>, rate: vec4<f32>) -> Moved {
    return Moved(total + rate * gradient);
}
