// Scores as they are. A file of its own: software adapters compile four tanh that nothing reaches for 2.5 times as long.
fn capped(scores: mat4x4<f32>) -> mat4x4<f32> {
    return scores;
}
