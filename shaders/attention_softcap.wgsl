// Scores between -SOFTCAP and SOFTCAP.
fn capped(scores: mat4x4<f32>) -> mat4x4<f32> {
    let x = scores * (1.0 / SOFTCAP);
    return mat4x4<f32>(tanh(x[0]), tanh(x[1]), tanh(x[2]), tanh(x[3])) * SOFTCAP;
}
