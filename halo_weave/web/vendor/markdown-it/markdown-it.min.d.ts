// For the type checker: it sets a global and exports nothing.
export {};
