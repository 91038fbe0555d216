// One invocation moves four neighbouring weights and their two moments, in place, and decays the weights (Loshchilov and
// Hutter, Decoupled weight decay regularization, 2019): the corrections are 1 / (1 - beta^t) of this step.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = ((group.z * groups.y + group.y) * groups.x + group.x) * GROUP + lane;
    if (i < SIZE) {
        let g = clipped(gradient[i]);
        let m = beta1() * first_moment[i] + (1.0 - beta1()) * g;
        let v = beta2() * second_moment[i] + (1.0 - beta2()) * g * g;
        first_moment[i] = m;
        second_moment[i] = v;
        let rate = lr() * MULTIPLIER;
        let moved = (m * correction1()) / (sqrt(v * correction2()) + epsilon());
        weight[i] -= rate * moved + rate * decay() * weight[i];
    }
}
