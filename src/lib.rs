//! Floodgate: a flash-sale order engine.
