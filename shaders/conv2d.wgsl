// Convolution, in each group: rows are output channels, columns pixels of the result, steps the elements of a window.
// Another file adds the products up: product_registers.wgsl or product_tiles.wgsl.
struct Column { image: u32, y: u32, x: u32 }

fn row_of(group: u32, row: u32) -> u32 {
    return (group * OUT + row) * STEPS;
}

// The corner of a window: what lies before the image wraps to large numbers.
fn column_of(group: u32, column: u32) -> Column {
    let image = (column / (OH * OW) * CI + group * IN) * (H * W);
    return Column(image, column / OW % OH * SH - PH, column % OW * SW - PW);
}

fn left(row: u32, k: u32) -> f32 {
    return k_at(row + k);
}

fn left4(row: u32, k: u32) -> vec4<f32> {
    if (STEPS % 4u == 0u) {
        return k_four(row + k);
    }
    return vec4<f32>(left(row, k), left(row, k + 1u), left(row, k + 2u), left(row, k + 3u));
}

fn right(column: Column, k: u32) -> f32 {
    let y = column.y + k / KW % KH * DH;
    let x = column.x + k % KW * DW;
    let inside = y < H && x < W;
    return select(0.0, x_at(select(0u, column.image + k / (KH * KW) * (H * W) + y * W + x, inside)), inside);
}

fn right4(column: Column, k: u32) -> vec4<f32> {
    return vec4<f32>(right(column, k), right(column, k + 1u), right(column, k + 2u), right(column, k + 3u));
}

fn place(group: u32, row: u32, column: u32) -> u32 {
    return (column / (OH * OW) * CO + group * OUT + row) * (OH * OW) + column % (OH * OW);
}
