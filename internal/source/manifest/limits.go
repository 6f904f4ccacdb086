package manifest

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Limits bound the input of a Source, so that no file can take the memory or the
// time that others need. Input above a limit is reported and not read.
type Limits struct {
	FileBytes     int64 // of one file, or of the standard input
	DocumentBytes int64 // of one YAML document, or of one object of a list
	Documents     int   // of one file
	Objects       int   // of all files
}

// DaemonLimits are for a process that runs on a node.
func DaemonLimits() Limits {
	return Limits{FileBytes: 32 << 20, DocumentBytes: 2 << 20, Documents: 200_000, Objects: 60_000}
}

// CommandLimits are for a command that reads once and ends.
func CommandLimits() Limits {
	return Limits{FileBytes: 512 << 20, DocumentBytes: 64 << 20, Documents: 2_000_000, Objects: 1_000_000}
}

const (
	maxDepth     = 100 // levels of objects and lists in one document
	maxListDepth = 5   // levels of Lists in Lists

	// bytesPerValue is the least number of bytes of a YAML document for each of
	// its values, on the average of a document of the largest size: a value takes
	// 200 bytes of memory, however short it is.
	bytesPerValue = 4
)

// tooLarge is the error of a part of a file that exceeds a limit.
func tooLarge(what string, size, limit int64) error {
	return fmt.Errorf("%s has %s; the limit is %s", what, text.Bytes(size), text.Bytes(limit))
}

// tooMany is the error of a number that exceeds a limit.
func tooMany(n int, thing string, limit int) error {
	return fmt.Errorf("%s; the limit is %d", text.Count(n, thing), limit)
}

func tooDeep(depth int) error {
	return fmt.Errorf("objects and lists are nested %d levels deep; the limit is %d", depth, maxDepth)
}
