// The pixel of a window that the index names, 0 where it is no pixel of the window.
fn unit(u: u32) {
    let named = index_at(u);
    let y = named / W + PH - u / OW % OH * SH;
    let x = named % W + PW - u % OW * SW;
    let inside = named < H * W && y < KH && x < KW;
    store(u, select(0.0, x_at(u / (OH * OW) * (H * W) + select(0u, named, inside)), inside));
}
