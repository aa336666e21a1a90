package console

// resources lists the resource types with the number of resources that the person may see.
func (v *visit) resources(_ []string) error {
	list, err := v.typeCounts()
	if err != nil {
		return err
	}
	used := table{Name: v.T("Resource types"), Head: columns(v.T("Type"), "#"+v.T("Resources"))}
	for _, t := range list {
		used.Rows = append(used.Rows, []cell{linkCell(t.Type, "/console/resources/"+t.Type), v.numberCell(t.N)})
	}
	return v.show("resources", v.T("Resources"), "", used)
}
