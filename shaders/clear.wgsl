// Four neighbouring sums set to zero.
fn moved(total: vec4<f32>, rate: vec4<f32>) -> Moved {
    return Moved(vec4<f32>(0.0));
}
