package reload

import (
	"crypto/sha256"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// pollPeriod is the time between two polls. A changed file is read when it was the same in two of
// them, as programs write a file in several steps.
const pollPeriod = 500 * time.Millisecond

// digest is a digest of the content of a file, or of the error of reading it.
type digest [sha256.Size]byte

// watch detects changes of a file by reading it. It follows symbolic links anywhere in the path, as
// those of a mounted ConfigMap, and needs no times of the file, which some file systems store in seconds.
type watch struct {
	path string

	last     digest // at the last poll
	reported digest // when changed last returned true
}

// changed polls the file. It returns true if the content, or the reason why it cannot be read,
// differs from when changed last returned true, and is the same as at the last poll.
func (w *watch) changed() bool {
	last := w.last
	w.last = digestOf(w.path)
	if w.last != last || w.last == w.reported {
		return false
	}
	w.reported = w.last
	return true
}

func digestOf(path string) digest {
	data, err := config.ReadFile(path)
	if err != nil {
		return sha256.Sum256([]byte(err.Error()))
	}
	return sha256.Sum256(data)
}
