// Package image tests the Dockerfile without a container engine: its stages are
// played in a mount namespace, and what comes out is run with nothing around it.
//
// The build stage's image is this machine, which has the same Go. The module
// proxy may be asked for what is not in the cache, as it is by the Dockerfile.
package image
