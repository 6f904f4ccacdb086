//go:build !linux

package process

import "time"

// ThreadTime returns 0: this system does not tell it.
func ThreadTime() time.Duration { return 0 }
