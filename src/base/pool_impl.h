/* Parts of the pool that its unit test calls directly. Private to src/base. */
#ifndef GS_BASE_POOL_IMPL_H
#define GS_BASE_POOL_IMPL_H

/*
 * CPUs that a cgroup v2 grants: the smallest cpu.max quota of the group at root/group and its
 * ancestors up to root, rounded up. 0 = no quota found.
 */
int gs_cgroup_cpus(const char *root, const char *group);

#endif
