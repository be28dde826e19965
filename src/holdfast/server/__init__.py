"""The mouth of the server: it holds no state and decides nothing."""
