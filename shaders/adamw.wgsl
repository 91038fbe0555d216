// Four neighbouring weights and their two moments after a step, which decays the weights (Loshchilov and Hutter,
// Decoupled weight decay regularization, 2019): the corrections are 1 / (1 - beta^t) of this step.
fn moved(
    weight: vec4<f32>, adam_m: vec4<f32>, adam_v: vec4<f32>, gradient: vec4<f32>, rate: vec4<f32>
) -> Moved {
    let m = beta1() * adam_m + (1.0 - beta1()) * gradient;
    let v = beta2() * adam_v + (1.0 - beta2()) * gradient * gradient;
    let by = (m * correction1()) / (sqrt(v * correction2()) + epsilon());
    return Moved(weight - (rate * by + rate * decay() * weight), m, v);
}
