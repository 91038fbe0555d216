// Four neighbouring weights and their two moments after a step (Ziyin, Wang and Ueda, LaProp, 2020): the gradient is
// normalized before it enters the momentum; the corrections are 1 / (1 - beta^t) of this step.
fn moved(
    weight: vec4<f32>, adam_m: vec4<f32>, adam_v: vec4<f32>, gradient: vec4<f32>, rate: vec4<f32>
) -> Moved {
    let v = beta2() * adam_v + (1.0 - beta2()) * gradient * gradient;
    let m = beta1() * adam_m + (1.0 - beta1()) * gradient / (sqrt(v * correction2()) + epsilon());
    return Moved(weight - rate * (m * correction1()), m, v);
}
