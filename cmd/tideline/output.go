package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVarP(to, "output", "o", "text", "text or json")
}

func checkOutput(o string) error {
	if o != "text" && o != "json" {
		return fmt.Errorf("-o %s: want text or json", o)
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// page collects text, so that one write and one error end it.
type page struct {
	strings.Builder
	width int
}

// line writes words behind an indent, wrapped, and further lines behind hang more columns.
func (p *page) line(indent, hang int, text string) {
	lines := wrap(text, max(p.width-indent-hang, minColumn))
	for i, l := range lines {
		if i > 0 {
			indent += hang
			hang = 0
		}
		p.WriteString(strings.TrimRight(strings.Repeat(" ", indent)+l, " ") + "\n")
	}
}

// labelled writes a label and its text, wrapped behind the label's column.
func (p *page) labelled(label string, column int, text string) {
	for i, l := range wrap(text, max(p.width-column, minColumn)) {
		if i > 0 {
			label = ""
		}
		p.WriteString(strings.TrimRight(fmt.Sprintf("%-*s%s", column, label, l), " ") + "\n")
	}
}

const (
	minColumn = 24 // the least that a wrapped column gets
	gap       = 2
)

// table writes aligned columns. The last one takes the rest of the width and wraps; where that leaves too little for
// it, it goes below its row. Where the others alone are too wide, their cells wrap too.
func (p *page) table(indent int, head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	last := len(head) - 1
	all := append([][]string{head}, rows...)
	var cells [][][]string
	var widths []int
	used := 0
	for _, limit := range []int{24, 16, 12, 8} {
		cells, widths = layOut(all, last, limit)
		used = indent
		for _, w := range widths {
			used += w + gap
		}
		if used-gap <= p.width {
			break
		}
	}
	below := p.width-used < minColumn
	for i, row := range all {
		text := row[last]
		switch {
		case below && i == 0:
			text = ""
		case !below && text != "":
			cells[i] = append(cells[i], wrapLines(text, p.width-used))
		}
		p.row(indent, cells[i], widths)
		if !below || text == "" {
			continue
		}
		for _, l := range wrapLines(text, max(p.width-indent-gap, minColumn)) {
			p.WriteString(strings.Repeat(" ", indent+gap) + l + "\n")
		}
	}
}

// layOut wraps the first columns of a table at limit: lines by row and column, and the width of each column.
func layOut(rows [][]string, columns, limit int) (cells [][][]string, widths []int) {
	cells, widths = make([][][]string, len(rows)), make([]int, columns)
	for i, row := range rows {
		cells[i] = make([][]string, columns)
		for j := range columns {
			cells[i][j] = wrapLines(row[j], limit)
			for _, l := range cells[i][j] {
				widths[j] = max(widths[j], utf8.RuneCountInString(l))
			}
		}
	}
	return cells, widths
}

// row writes the cells of one row; a cell behind the widths is the last one.
func (p *page) row(indent int, cells [][]string, widths []int) {
	height := 0
	for _, c := range cells {
		height = max(height, len(c))
	}
	for l := range height {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", indent))
		for j, c := range cells {
			cell := ""
			if l < len(c) {
				cell = c[l]
			}
			b.WriteString(cell)
			if j < len(widths) {
				b.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+gap))
			}
		}
		p.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
}

// wrap breaks text at spaces; a word that is longer than width stays whole. It gives at least one line.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// wrapLines wraps each line of text by itself, and keeps its indent.
func wrapLines(text string, width int) []string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for _, l := range wrap(line, width-len(indent)) {
			lines = append(lines, indent+l)
		}
	}
	return lines
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %s", n, many)
}
