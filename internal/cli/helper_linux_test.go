package cli

import (
	"os"
	"syscall"
)

// nobody is the user of a program without privileges.
const nobody = 65534

// powerless puts a program into a user namespace in which it is not root.
func powerless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getgid(), Size: 1}},
	}
}
