package codegen

import (
	"io/fs"

	"kiln/codegen/definition"
	"kiln/codegen/emit"
	"kiln/codegen/ir"
)

// Generate compiles a folder of definitions and returns every file of gen/ that
// it makes, and the model they were printed from. Nothing is written.
func Generate(definitions fs.FS) (emit.Tree, *ir.Model, error) {
	set, err := definition.Load(definitions)
	if err != nil {
		return nil, nil, err
	}
	model, err := ir.Build(set)
	if err != nil {
		return nil, nil, err
	}
	tree := emit.Tree{}
	for _, print := range []func(emit.Tree, *ir.Model) error{emit.Models, emit.Handlers, emit.Index, emit.Invariants} {
		if err := print(tree, model); err != nil {
			return nil, nil, err
		}
	}
	return tree, model, nil
}
