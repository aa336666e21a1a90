package console

import (
	"fmt"
	"math"
	"strings"
)

// chart is a line chart, as SVG. The page has its values in a table too.
type chart struct {
	Name          string // accessible name
	Title, Range  string // shown
	Width, Height int
	Points, Area  string
	Grid          []string
	Dots          []dot
	Table         *table
}

type dot struct{ X, Y string }

// point is a value at a moment.
type point struct{ X, Y float64 }

const (
	chartWidth  = 600
	chartHeight = 120
	chartMargin = 8
	dotsShown   = 60 // a line of more points has no dots
)

// draw fills in the lines of a chart. zero begins the scale at 0.
func (c *chart) draw(points []point, zero bool) {
	c.Width, c.Height = chartWidth, chartHeight
	if len(points) == 0 {
		return
	}
	minX, maxX, minY, maxY := points[0].X, points[0].X, points[0].Y, points[0].Y
	for _, p := range points {
		minX, maxX, minY, maxY = math.Min(minX, p.X), math.Max(maxX, p.X), math.Min(minY, p.Y), math.Max(maxY, p.Y)
	}
	if zero {
		minY = math.Min(0, minY)
	}
	if maxY == minY {
		maxY, minY = maxY+1, minY-1
		if zero {
			minY = 0
		}
	}
	if maxX == minX { // in the middle
		minX, maxX = minX-1, maxX+1
	}
	at := func(p point) (x, y string) {
		return trim(chartMargin + (p.X-minX)/(maxX-minX)*(chartWidth-2*chartMargin)), trim(chartHeight - chartMargin - (p.Y-minY)/(maxY-minY)*(chartHeight-2*chartMargin))
	}
	var line strings.Builder
	firstX, lastX := "", ""
	for i, p := range points {
		x, y := at(p)
		if i == 0 {
			firstX = x
		}
		lastX = x
		fmt.Fprintf(&line, "%s,%s ", x, y)
		if len(points) <= dotsShown && !zero {
			c.Dots = append(c.Dots, dot{x, y})
		}
	}
	c.Points = strings.TrimSpace(line.String())
	if zero {
		bottom := trim(chartHeight - chartMargin)
		c.Area = firstX + "," + bottom + " " + c.Points + " " + lastX + "," + bottom
	}
	for i := range 3 {
		c.Grid = append(c.Grid, trim(float64(chartMargin+i*(chartHeight-2*chartMargin)/2)))
	}
}

// trim writes a coordinate.
func trim(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

// short writes a figure of a scale.
func short(f float64) string {
	switch {
	case f == math.Trunc(f) && math.Abs(f) < 1e9:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) < 10:
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.1f", f)
}
