package install

import (
	"fmt"
	"slices"
	"strings"
)

// String is the step in one line.
func (s Step) String() string {
	text := map[Op]string{
		Remember:     "remember in " + StateFile + " what is ours and what stood there before",
		Write:        "write " + s.Path,
		Remove:       "remove " + s.Path,
		RemoveFolder: "remove folder " + s.Path + ", if it is empty",
		RemoveTree:   "remove folder " + s.Path + " with what is in it",
		Run:          "run: " + strings.Join(s.Args, " "),
		WaitDoor:     fmt.Sprintf("check: the %s door answers and is connected to the runtime", s.Door),
		WaitUnit:     "check: " + s.Unit + " is active and stays so",
		CheckNRI:     "check: NRI is on in what this prints: " + strings.Join(s.Args, " "),
		Disable:      "ask the door to put every kernel value back, as tideline disable does",
		EndBypass:    "end bypass, as tideline bypass off does",
		Forget:       "remove " + StateFile,
	}[s.Op]
	if s.Op == WaitDoor && s.QoS != "" {
		text += ", in mode " + string(s.QoS)
	}
	if s.Op == Remember && s.State.Done {
		text = "remember in " + StateFile + " that this is done"
	}
	if s.Op == Write && s.Was == nil {
		text += " (new)"
	}
	if s.Why != "" {
		text += " (" + s.Why + ")"
	}
	return text
}

// String is the plan as a person reads it: every step, every file with its text, old lines behind - and new ones behind +.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Plan: %s\n", p.Title)
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, s)
		if s.Op == Write || s.Op == Remove {
			was := ""
			if s.Was != nil {
				was = *s.Was
			}
			writeDiff(&b, was, s.Text)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "Note: %s\n", n)
	}
	return b.String()
}

// writeDiff shows what changes between the lines that both texts begin and end with.
func writeDiff(b *strings.Builder, was, text string) {
	o, n := lines(was), lines(text)
	head := 0
	for head < min(len(o), len(n)) && o[head] == n[head] {
		head++
	}
	tail := 0
	for tail < min(len(o), len(n))-head && o[len(o)-1-tail] == n[len(n)-1-tail] {
		tail++
	}
	for _, part := range []struct {
		mark  string
		lines []string
	}{{" ", o[:head]}, {"-", o[head : len(o)-tail]}, {"+", n[head : len(n)-tail]}, {" ", o[len(o)-tail:]}} {
		for _, l := range part.lines {
			b.WriteString(strings.TrimRight("     "+part.mark+" "+l, " ") + "\n")
		}
	}
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return slices.Collect(strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n"))
}
