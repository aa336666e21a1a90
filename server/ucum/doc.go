// Package ucum reads units of the Unified Code for Units of Measure, case
// sensitive form, and converts between them with exact rational factors.
//
// It knows the units that clinical data use; a code outside its table is an
// error that names the part it does not know, never a wrong factor. Arbitrary
// units ([iU], [arb'U]) are dimensions of their own, as UCUM has it. Temperatures
// with an offset (Cel, [degF]) convert as long as they stand alone; logarithmic
// units (pH, B, Np) are dimensions of their own.
//
// Spec: https://ucum.org/ucum.
package ucum
