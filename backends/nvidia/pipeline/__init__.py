"""The strategy of Hopper: copies and products in flight at once, by roles of warp groups."""
