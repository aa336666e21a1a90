// Package view compiles ViewDefinitions and evaluates them: rows out of resources, as SQL on FHIR
// defines them. It owns the checks of a ViewDefinition, the types of columns and the order of rows
// and columns. Package view/format writes rows, and package view/operate checks rights.
//
//	*r4.ViewDefinition --Compile--> View --Eval(resource)--> row, row, …
//	        |                        |
//	     issues                   Columns, Wheres
//
// # A row
//
// A View is compiled once. Its selections are closures over the columns of one row buffer:
//
//	row      [ id | family | given ]        cells, in the order of the view's columns
//	             ^      ^
//	select[0] ---'      |                   writes its cells, then calls the next selection
//	select[1] forEach --'                   once for each item
//	                    emit(row)           behind the last selection
//
// Rows are made one by one: crossed lists of one resource can give billions of rows, and emit stops
// the evaluation where it has enough.
//
// Spec: SQL on FHIR 3.0.0-ballot, ViewDefinition, processing algorithm.
package view
