// Package units turns the texts and numbers of Kubernetes, CRI and the kernel into one another: CPU lists, cpu.max,
// milli-CPU and quota, CPU shares and weights, quantities, page multiples. It is pure, takes hostile input in bounded
// time, and knows nothing of pods.
//
//	milli, err := units.ParseMilliCPU("1500m")
//	quota, err := units.QuotaFromMilli(milli, units.DefaultPeriod)
//	text := units.CPUMax{Quota: quota, Period: units.DefaultPeriod}.String() // "150000 100000"
package units

import (
	"fmt"
	"strconv"
)

// QuoteLimit is how many bytes of a foreign value appear in a message.
const QuoteLimit = 64

// Quote makes a foreign text fit for one line of a log: quoted as Go does, cut after QuoteLimit bytes.
func Quote(s string) string {
	if len(s) > QuoteLimit {
		return fmt.Sprintf("%q... (%d bytes)", s[:QuoteLimit], len(s))
	}
	return strconv.Quote(s)
}

// DefaultPageSize is the page size where none is known.
const DefaultPageSize = 4096

// PageDown rounds bytes down to a multiple of the page size, as the kernel does with what is written to memory files.
// A page size of zero or less is DefaultPageSize; negative bytes are returned as they are.
func PageDown(bytes, page int64) int64 {
	if page <= 0 {
		page = DefaultPageSize
	}
	if bytes < 0 {
		return bytes
	}
	return bytes - bytes%page
}

// PercentOf is percent of n, rounded down, without overflow for n >= 0 and percent from 0 to 100.
func PercentOf(n int64, percent int) int64 {
	p := int64(percent)
	return n/100*p + n%100*p/100
}
