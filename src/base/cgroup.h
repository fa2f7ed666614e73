/*
 * What the control group (v2) of this process allows. Limits of a group count for all below it, so
 * one walks from the process's own group up to the root.
 * Source: Linux, Documentation/admin-guide/cgroup-v2.rst.
 */
#ifndef GS_BASE_CGROUP_H
#define GS_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GS_CGROUP_ROOT "/sys/fs/cgroup"

/* A small text file into out, terminated; false when it can't be read. */
bool gs_read_text(const char *path, char *out, size_t cap);
/* The process's own group, such as "/system.slice/x.service"; false: there is none. */
bool gs_cgroup_own(char *out, size_t cap);
/* The smallest of what value(dir) says of the group at root/group and its ancestors up to root;
 * UINT64_MAX: no limit. */
uint64_t gs_cgroup_least(const char *root, const char *group, uint64_t (*value)(const char *dir));

#endif
