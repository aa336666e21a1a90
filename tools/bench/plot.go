package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// drawPlots writes SVG files to a folder: throughput.svg with a bar for each
// workload, and for each workload latency-NAME.svg with a curve for each category.
func drawPlots(folder string, results []Result) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	plot.DefaultFont, plotter.DefaultFont = sans, sans
	if err := drawThroughput(filepath.Join(folder, "throughput.svg"), results); err != nil {
		return fmt.Errorf("draw the throughput: %w", err)
	}
	for _, r := range results {
		name := "latency-" + strings.Map(fileRune, label(r)) + ".svg"
		if err := drawLatency(filepath.Join(folder, name), r); err != nil {
			return fmt.Errorf("draw the latency of %s: %w", r.Workload, err)
		}
	}
	return nil
}

func label(r Result) string {
	if r.TargetRate > 0 {
		return fmt.Sprintf("%s at %.0f/s", r.Workload, r.TargetRate)
	}
	return fmt.Sprintf("%s, %d clients", r.Workload, r.Clients)
}

func fileRune(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return r
	case r == ',':
		return -1
	}
	return '-'
}

func drawThroughput(path string, results []Result) error {
	p := plot.New()
	p.Title.Text = "Requests a second (bars: median, whiskers: slowest and fastest run)"
	p.X.Min = 0
	var values plotter.Values
	var names []string
	var whiskers throughputErrors
	for i := range results {
		r := results[len(results)-1-i] // the first one on top
		values = append(values, r.Rate.Median)
		names = append(names, label(r))
		whiskers.x = append(whiskers.x, plotter.XY{X: r.Rate.Median, Y: float64(i)})
		whiskers.e = append(whiskers.e, [2]float64{r.Rate.Median - r.Rate.Min, r.Rate.Max - r.Rate.Median})
	}
	bars, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return err
	}
	bars.Horizontal = true
	bars.Color = plotutil.Color(2)
	bars.LineStyle.Width = 0
	p.Add(plotter.NewGrid(), bars)
	if errors, err := plotter.NewXErrorBars(whiskers); err == nil {
		p.Add(errors)
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(results))-0.4
	return p.Save(18*vg.Centimeter, vg.Length(len(results))*0.9*vg.Centimeter+3*vg.Centimeter, path)
}

type throughputErrors struct {
	x plotter.XYs
	e [][2]float64
}

func (t throughputErrors) Len() int                        { return len(t.x) }
func (t throughputErrors) XY(i int) (float64, float64)     { return t.x.XY(i) }
func (t throughputErrors) XError(i int) (float64, float64) { return t.e[i][0], t.e[i][1] }

// drawLatency draws quantiles: the x axis is how many requests in a hundred,
// thousand, … took longer, so that the tail has as much room as the middle.
func drawLatency(path string, r Result) error {
	p := plot.New()
	p.Title.Text = "Latency of " + label(r)
	p.X.Label.Text = "share of requests"
	p.Y.Label.Text = "ms"
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.X.Tick.Marker = quantileTicks{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	categories := r.Categories
	if len(categories) == 0 {
		categories = []Category{r.All}
	}
	drawn := 0
	for i, c := range categories {
		var xys plotter.XYs
		for _, point := range c.Curve {
			if point[0] > 0 {
				// The slowest of n requests stands for the slowest n-th.
				fraction := min(point[1], 1-0.5/float64(max(c.Requests, 1)))
				xys = append(xys, plotter.XY{X: quantileX(fraction), Y: point[0]})
			}
		}
		if len(xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return err
		}
		line.Color = plotutil.Color(i)
		line.Dashes = plotutil.Dashes(i / 7)
		p.Add(line)
		p.Legend.Add(c.Name, line)
		drawn++
	}
	if drawn == 0 {
		return nil
	}
	p.BackgroundColor = color.White
	if len(categories) > 1 {
		p.X.Min = -0.3 * p.X.Max // room for the legend
	}
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, path)
}

// quantileX places the fraction 1-10^-n at n.
func quantileX(fraction float64) float64 { return -math.Log10(max(1-fraction, 1e-5)) }

type quantileTicks struct{}

func (quantileTicks) Ticks(_, most float64) []plot.Tick {
	var ticks []plot.Tick
	for _, q := range []struct {
		fraction float64
		name     string
	}{{0, "0"}, {0.5, "50%"}, {0.9, "90%"}, {0.99, "99%"}, {0.999, "99.9%"}, {0.9999, "99.99%"}} {
		if x := quantileX(q.fraction); x <= most {
			ticks = append(ticks, plot.Tick{Value: x, Label: q.name})
		}
	}
	return ticks
}
