// Four neighbouring weights after a step against their gradient.
fn moved(weight: vec4<f32>, gradient: vec4<f32>, rate: vec4<f32>) -> Moved {
    return Moved(weight - rate * gradient);
}
